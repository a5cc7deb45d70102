//! The expression language of declarations: one tree, evaluated here and written out as CUDA and as Rust.

use std::fmt;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::quote;

use crate::At;

/// A two-operand operation. All work on signed integers; `/` and `%` truncate as in C and Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// `a % b`
    Rem,
    /// `min(a, b)`
    Min,
    /// `max(a, b)`
    Max,
    /// `ceil_div(a, b)` for `a >= 0`, `b > 0`
    CeilDiv,
}

impl Op {
    /// The operator or function name as a declaration spells it.
    pub fn spelling(self) -> &'static str {
        match self {
            Op::Add => "+",
            Op::Sub => "-",
            Op::Mul => "*",
            Op::Div => "/",
            Op::Rem => "%",
            Op::Min => "min",
            Op::Max => "max",
            Op::CeilDiv => "ceil_div",
        }
    }

    /// The function that stands for it in generated Rust.
    fn function(self) -> &'static str {
        match self {
            Op::Add => "add",
            Op::Sub => "sub",
            Op::Mul => "mul",
            Op::Div => "div",
            Op::Rem => "rem",
            other => other.spelling(),
        }
    }

    fn apply(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Op::Add => a.checked_add(b),
            Op::Sub => a.checked_sub(b),
            Op::Mul => a.checked_mul(b),
            Op::Div => a.checked_div(b),
            Op::Rem => a.checked_rem(b),
            Op::Min => Some(a.min(b)),
            Op::Max => Some(a.max(b)),
            Op::CeilDiv => {
                (a >= 0 && b > 0).then(|| a.checked_add(b - 1)).flatten().map(|rounded| rounded / b)
            }
        }
    }
}

/// An integer expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// A non-negative literal.
    Int(i64),
    /// A dimension, constant, profile field or run-time symbol.
    Name(String, At),
    /// An operation on two expressions.
    Apply(Op, Box<Expr>, Box<Expr>, At),
}

/// The range that every intermediate result must stay in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// What CUDA's `int` holds: for everything that is emitted as `constexpr int`.
    I32,
    /// For sizes computed on the host only.
    I64,
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvalError {
    /// Where in the declaration.
    pub at: At,
    /// What went wrong, with the operands.
    pub message: String,
}

impl Expr {
    /// The value under `lookup`, with every step checked.
    ///
    /// # Errors
    /// An unknown name, a division by zero, or a step that leaves `width`.
    pub fn eval(&self, width: Width, lookup: &dyn Fn(&str) -> Option<i64>) -> Result<i64, EvalError> {
        match self {
            Expr::Int(value) => Ok(*value),
            Expr::Name(name, at) => lookup(name)
                .ok_or_else(|| EvalError { at: *at, message: format!("`{name}` has no value here") }),
            Expr::Apply(op, left, right, at) => {
                let (a, b) = (left.eval(width, lookup)?, right.eval(width, lookup)?);
                let fits = |value: &i64| width == Width::I64 || i32::try_from(*value).is_ok();
                op.apply(a, b).filter(fits).ok_or_else(|| EvalError {
                    at: *at,
                    message: format!(
                        "`{self}` has no value: {} of {a} and {b} overflows or divides by zero",
                        op.spelling()
                    ),
                })
            }
        }
    }

    /// Every name in the expression with its place, left to right.
    pub fn names(&self) -> Vec<(&str, At)> {
        match self {
            Expr::Int(_) => Vec::new(),
            Expr::Name(name, at) => vec![(name, *at)],
            Expr::Apply(_, left, right, _) => [left.names(), right.names()].concat(),
        }
    }

    /// Where the expression begins, for error messages (literals carry no place of their own).
    pub fn at(&self) -> At {
        match self {
            Expr::Int(_) => At::default(),
            Expr::Name(_, at) | Expr::Apply(_, _, _, at) => *at,
        }
    }

    /// The expression as CUDA C++, valid in a `constexpr`.
    pub fn cuda(&self) -> String {
        self.text("kd::")
    }

    /// The expression as Rust, an `i64`: checked calls, each followed by `?`.
    pub fn rust(&self) -> TokenStream {
        match self {
            Expr::Int(value) => {
                let value = Literal::i64_unsuffixed(*value);
                quote!(#value)
            }
            Expr::Name(name, _) => {
                let name = rust_ident(name);
                quote!(#name)
            }
            Expr::Apply(..) => {
                let call = self.rust_option();
                quote!(#call?)
            }
        }
    }

    /// The expression as Rust, an `Option<i64>`.
    pub fn rust_option(&self) -> TokenStream {
        let Expr::Apply(op, left, right, _) = self else {
            let value = self.rust();
            return quote!(Some(#value));
        };
        let function = Ident::new(op.function(), Span::call_site());
        let (left, right) = (left.rust(), right.rust());
        quote!(arith::#function(#left, #right))
    }

    fn text(&self, namespace: &str) -> String {
        match self {
            Expr::Int(value) => value.to_string(),
            Expr::Name(name, _) => name.clone(),
            Expr::Apply(op @ (Op::Min | Op::Max | Op::CeilDiv), left, right, _) => {
                format!("{namespace}{}({}, {})", op.spelling(), left.text(namespace), right.text(namespace))
            }
            Expr::Apply(op, left, right, _) => {
                let left_text = left.wrapped(namespace, left.binds() < self.binds());
                let right_text = right.wrapped(namespace, right.binds() <= self.binds());
                format!("{left_text} {} {right_text}", op.spelling())
            }
        }
    }

    fn wrapped(&self, namespace: &str, parentheses: bool) -> String {
        let text = self.text(namespace);
        if parentheses { format!("({text})") } else { text }
    }

    fn binds(&self) -> u8 {
        match self {
            Expr::Apply(Op::Add | Op::Sub, ..) => 1,
            Expr::Apply(Op::Mul | Op::Div | Op::Rem, ..) => 2,
            _ => 3,
        }
    }
}

/// The declaration's own spelling.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(""))
    }
}

/// The Rust variable that holds `name` in a generated launcher.
pub(crate) fn rust_ident(name: &str) -> Ident {
    Ident::new(&name.to_lowercase(), Span::call_site())
}

/// How two expressions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `a == b`
    Equal,
    /// `a != b`
    NotEqual,
    /// `a < b`
    Less,
    /// `a <= b`
    LessOrEqual,
    /// `a > b`
    Greater,
    /// `a >= b`
    GreaterOrEqual,
}

impl Relation {
    /// The operator, the same in the declaration, in Rust and in CUDA.
    pub fn spelling(self) -> &'static str {
        match self {
            Relation::Equal => "==",
            Relation::NotEqual => "!=",
            Relation::Less => "<",
            Relation::LessOrEqual => "<=",
            Relation::Greater => ">",
            Relation::GreaterOrEqual => ">=",
        }
    }
}

/// One comparison of a `require`, `when` or `prefer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Left side.
    pub left: Expr,
    /// How the sides are compared.
    pub relation: Relation,
    /// Right side.
    pub right: Expr,
    /// Where the comparison stands.
    pub at: At,
}

impl Comparison {
    /// Whether it holds; also the two values, for messages.
    ///
    /// # Errors
    /// As [`Expr::eval`].
    pub fn eval(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Result<(bool, i64, i64), EvalError> {
        let (a, b) = (self.left.eval(Width::I64, lookup)?, self.right.eval(Width::I64, lookup)?);
        let holds = match self.relation {
            Relation::Equal => a == b,
            Relation::NotEqual => a != b,
            Relation::Less => a < b,
            Relation::LessOrEqual => a <= b,
            Relation::Greater => a > b,
            Relation::GreaterOrEqual => a >= b,
        };
        Ok((holds, a, b))
    }

    /// Every name on either side.
    pub fn names(&self) -> Vec<(&str, At)> {
        [self.left.names(), self.right.names()].concat()
    }

    /// The comparison as a Rust `bool` expression.
    pub fn rust(&self) -> TokenStream {
        let (left, right) = (self.left.rust(), self.right.rust());
        match self.relation {
            Relation::Equal => quote!(#left == #right),
            Relation::NotEqual => quote!(#left != #right),
            Relation::Less => quote!(#left < #right),
            Relation::LessOrEqual => quote!(#left <= #right),
            Relation::Greater => quote!(#left > #right),
            Relation::GreaterOrEqual => quote!(#left >= #right),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.relation.spelling(), self.right)
    }
}
