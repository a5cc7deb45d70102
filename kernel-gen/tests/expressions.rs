//! One expression, three readings: the value computed here, the CUDA text and the Rust text must agree.

use kernel_gen::{At, Expr, Op, Width};
use proptest::prelude::*;

/// Values of the names that the expressions use.
const NAMES: [(&str, i64); 4] = [("H", 7168), ("TN", 64), ("ST", 6), ("ZERO", 0)];

fn lookup(name: &str) -> Option<i64> {
    NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

fn expressions() -> impl Strategy<Value = Expr> {
    let ops = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Rem, Op::Min, Op::Max, Op::CeilDiv];
    let leaf = prop_oneof![
        (0..100_000i64).prop_map(Expr::Int),
        prop::sample::select(NAMES.map(|(name, _)| name).to_vec())
            .prop_map(|name| Expr::Name(name.to_owned(), At::default())),
    ];
    leaf.prop_recursive(6, 64, 2, move |inner| {
        (prop::sample::select(ops.to_vec()), inner.clone(), inner)
            .prop_map(|(op, a, b)| Expr::Apply(op, Box::new(a), Box::new(b), At::default()))
    })
}

proptest! {
    #[test]
    fn the_emitted_cuda_has_the_same_value(expr in expressions()) {
        let value = expr.eval(Width::I64, &lookup).ok();
        prop_assert_eq!(Reader::value(&expr.cuda()), value, "{}", expr.cuda());
    }

    #[test]
    fn the_emitted_rust_has_the_same_value(expr in expressions()) {
        let value = expr.eval(Width::I64, &lookup).ok();
        let text = expr.rust().to_string().replace('?', "");
        prop_assert_eq!(Reader::value(&text), value, "{}", text);
    }

    #[test]
    fn a_narrow_value_is_the_wide_one_or_none(expr in expressions()) {
        if let Ok(narrow) = expr.eval(Width::I32, &lookup) {
            prop_assert!(i32::try_from(narrow).is_ok());
            prop_assert_eq!(expr.eval(Width::I64, &lookup).ok(), Some(narrow));
        }
    }

    #[test]
    fn the_declaration_spelling_is_read_back(expr in expressions()) {
        prop_assert_eq!(Reader::value(&expr.to_string()), expr.eval(Width::I64, &lookup).ok());
    }
}

#[test]
fn division_truncates_towards_zero_as_in_cuda() {
    for (text, value) in
        [("7 / 2", 3), ("(0 - 7) / 2", -3), ("(0 - 7) % 4", -3), ("1 - 2 - 3", -4), ("8 / 4 * 2", 4)]
    {
        assert_eq!(Reader::value(text), Some(value), "{text}");
    }
}

#[test]
fn what_has_no_value_is_an_error_that_names_the_operation() {
    let zero = || Box::new(Expr::Name("ZERO".to_owned(), At { line: 3, column: 9 }));
    for op in [Op::Div, Op::Rem, Op::CeilDiv] {
        let expr = Expr::Apply(op, Box::new(Expr::Int(1)), zero(), At { line: 3, column: 5 });
        let error = expr.eval(Width::I64, &lookup).expect_err("no value");
        assert_eq!(error.at, At { line: 3, column: 5 });
        assert!(error.message.contains(op.spelling()), "{error}");
    }
    let wide =
        Expr::Apply(Op::Mul, Box::new(Expr::Int(1 << 20)), Box::new(Expr::Int(1 << 20)), At::default());
    assert_eq!(wide.eval(Width::I64, &lookup), Ok(1 << 40));
    assert!(wide.eval(Width::I32, &lookup).expect_err("too wide").message.contains("overflows"));
}

/// A reader of emitted text that shares no code with the emitter: infix with C's precedence, calls, names, integers.
struct Reader<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<&'a str>>,
}

impl<'a> Reader<'a> {
    fn value(text: &'a str) -> Option<i64> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = if rest.starts_with("::") { 2 } else { word.max(1) };
            tokens.push(&rest[..length]);
            rest = rest[length..].trim_start();
        }
        let mut reader = Self { tokens: tokens.into_iter().peekable() };
        let value = reader.sum();
        assert!(reader.tokens.next().is_none(), "text left over in {text}");
        value
    }

    fn sum(&mut self) -> Option<i64> {
        let mut value = self.product();
        while let Some(op @ ("+" | "-")) = self.tokens.peek().copied() {
            self.tokens.next();
            let right = self.product();
            value = value.zip(right).and_then(|(a, b)| apply(op, a, b));
        }
        value
    }

    fn product(&mut self) -> Option<i64> {
        let mut value = self.atom();
        while let Some(op @ ("*" | "/" | "%")) = self.tokens.peek().copied() {
            self.tokens.next();
            let right = self.atom();
            value = value.zip(right).and_then(|(a, b)| apply(op, a, b));
        }
        value
    }

    fn atom(&mut self) -> Option<i64> {
        let mut token = self.tokens.next().expect("an atom");
        if self.tokens.peek() == Some(&"::") {
            self.tokens.next();
            token = self.tokens.next().expect("a name after ::");
        }
        if token == "(" {
            let value = self.sum();
            assert_eq!(self.tokens.next(), Some(")"));
            return value;
        }
        if self.tokens.peek() == Some(&"(") {
            self.tokens.next();
            let left = self.sum();
            assert_eq!(self.tokens.next(), Some(","));
            let right = self.sum();
            assert_eq!(self.tokens.next(), Some(")"));
            return left.zip(right).and_then(|(a, b)| apply(token, a, b));
        }
        token.parse().ok().or_else(|| lookup(token))
    }
}

fn apply(op: &str, a: i64, b: i64) -> Option<i64> {
    let (wide_a, wide_b) = (i128::from(a), i128::from(b));
    let value = match op {
        "+" | "add" => wide_a + wide_b,
        "-" | "sub" => wide_a - wide_b,
        "*" | "mul" => wide_a * wide_b,
        "/" | "div" if b != 0 => wide_a / wide_b,
        "%" | "rem" if b != 0 => wide_a % wide_b,
        "min" => wide_a.min(wide_b),
        "max" => wide_a.max(wide_b),
        "ceil_div" if a >= 0 && b > 0 => (wide_a + wide_b - 1) / wide_b,
        _ => return None,
    };
    // The sum inside ceil_div must fit too.
    if op == "ceil_div" && i64::try_from(wide_a + wide_b - 1).is_err() {
        return None;
    }
    i64::try_from(value).ok()
}
