//! The environment that chat templates are written for: Jinja as transformers sets it up.

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior};

use super::convert::invalid;
use super::{filters, methods, strftime};

/// An environment without templates. Blocks eat the newline behind them and the spaces before them, undefined prints
/// as nothing, nothing is escaped, and no file can be included.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    env.add_filter("tojson", filters::tojson);
    env.add_function("raise_exception", |message: String| -> Result<String, Error> { Err(invalid(message)) });
    env.add_function("strftime_now", |format: String| strftime::now(&format));
    Ok(env)
}
