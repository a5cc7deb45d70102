//! Expressions and comparisons from Rust syntax.

use syn::spanned::Spanned;
use syn::{BinOp, Lit};

use crate::At;
use crate::expr::{Comparison, Expr, Op, Relation};

const LANGUAGE: &str = "expected an integer, a name, `+ - * / %`, min(), max() or ceil_div()";

/// An arithmetic expression.
pub(crate) fn expr(source: &syn::Expr) -> syn::Result<Expr> {
    let at = At::from(source.span());
    match source {
        syn::Expr::Paren(inner) => expr(&inner.expr),
        syn::Expr::Group(inner) => expr(&inner.expr),
        syn::Expr::Lit(literal) => match &literal.lit {
            Lit::Int(value) if value.suffix().is_empty() => Ok(Expr::Int(value.base10_parse()?)),
            _ => Err(syn::Error::new(source.span(), LANGUAGE)),
        },
        syn::Expr::Path(path) => match path.path.get_ident() {
            Some(name) => Ok(Expr::Name(name.to_string(), at)),
            None => Err(syn::Error::new(source.span(), LANGUAGE)),
        },
        syn::Expr::Binary(binary) => {
            let op = match binary.op {
                BinOp::Add(_) => Op::Add,
                BinOp::Sub(_) => Op::Sub,
                BinOp::Mul(_) => Op::Mul,
                BinOp::Div(_) => Op::Div,
                BinOp::Rem(_) => Op::Rem,
                _ => return Err(syn::Error::new(binary.op.span(), LANGUAGE)),
            };
            Ok(Expr::Apply(op, Box::new(expr(&binary.left)?), Box::new(expr(&binary.right)?), at))
        }
        syn::Expr::Call(call) => {
            let op = match &*call.func {
                syn::Expr::Path(path) if path.path.is_ident("min") => Op::Min,
                syn::Expr::Path(path) if path.path.is_ident("max") => Op::Max,
                syn::Expr::Path(path) if path.path.is_ident("ceil_div") => Op::CeilDiv,
                other => return Err(syn::Error::new(other.span(), LANGUAGE)),
            };
            let arguments: Vec<_> = call.args.iter().collect();
            let [left, right] = arguments[..] else {
                let message = format!("{}() takes two arguments, not {}", op.spelling(), arguments.len());
                return Err(syn::Error::new(source.span(), message));
            };
            Ok(Expr::Apply(op, Box::new(expr(left)?), Box::new(expr(right)?), at))
        }
        _ => Err(syn::Error::new(source.span(), LANGUAGE)),
    }
}

/// Comparisons joined by `&&`.
pub(crate) fn comparisons(source: &syn::Expr) -> syn::Result<Vec<Comparison>> {
    match source {
        syn::Expr::Paren(inner) => comparisons(&inner.expr),
        syn::Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            Ok([comparisons(&binary.left)?, comparisons(&binary.right)?].concat())
        }
        syn::Expr::Binary(binary) => {
            let relation = match binary.op {
                BinOp::Eq(_) => Relation::Equal,
                BinOp::Ne(_) => Relation::NotEqual,
                BinOp::Lt(_) => Relation::Less,
                BinOp::Le(_) => Relation::LessOrEqual,
                BinOp::Gt(_) => Relation::Greater,
                BinOp::Ge(_) => Relation::GreaterOrEqual,
                _ => return Err(syn::Error::new(source.span(), "expected a comparison")),
            };
            let (left, right) = (expr(&binary.left)?, expr(&binary.right)?);
            Ok(vec![Comparison { left, relation, right, at: source.span().into() }])
        }
        _ => Err(syn::Error::new(source.span(), "expected a comparison")),
    }
}
