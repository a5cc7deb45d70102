//! Tool declarations in K2.6's TypeScript-like form.
//!
//! ```text
//! namespace functions {
//! // What it does
//! type name = (_: {
//!   // Unit
//!   // Default: "c"
//!   unit?: "c" | "f"
//! }) => any;
//! }
//! ```
//!
//! Keys are sorted at every level first; required fields come before optional ones. If one schema has a form that the
//! encoder does not know, all tools are declared as compact JSON instead, as the published code does it.

use serde_json::Value;

use super::pyjson::{self, truthy};
use super::tools_ts_schema::{
    Additional, Object, Property, Registry, Schema, Shape, Unsupported, description,
};

type Result<T> = std::result::Result<T, Unsupported>;

const INDENT: &str = "  ";

/// The declaration of all tools: TypeScript-like, or compact JSON where that cannot be.
pub(super) fn declare(tools: &[Value]) -> String {
    let tools: Vec<Value> = tools.iter().map(pyjson::sorted).collect();
    match typescript(&tools) {
        Ok(Some(text)) => text,
        Ok(None) | Err(Unsupported) => pyjson::dumps(&Value::Array(tools), &pyjson::Style::compact()),
    }
}

/// The TypeScript-like form of tools with sorted keys; `None` if no function is among them.
pub(super) fn typescript(tools: &[Value]) -> Result<Option<String>> {
    let mut functions = Vec::new();
    for tool in tools {
        let is_function = tool.get("type").is_some_and(|kind| kind == "function");
        if let Some(definition) = tool.get("function").filter(|f| is_function && truthy(f)) {
            functions.push(function(definition)?);
        }
    }
    if functions.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!("# Tools\n\n## functions\nnamespace functions {{\n{}\n}}\n", functions.join("\n"))))
}

fn function(definition: &Value) -> Result<String> {
    let definition = definition.as_object().ok_or(Unsupported)?;
    let mut registry = Registry::default();
    let parameters = match definition.get("parameters").filter(|p| truthy(p)) {
        Some(schema) => Object::read(schema.as_object().ok_or(Unsupported)?, &mut registry)?,
        None => Object::default(),
    };
    let mut lines = Vec::new();
    // A reference to `#` that only a definition makes is seen too late by the published code; so it is here.
    let recursive = registry.self_reference;
    if recursive {
        let fields = parameters.properties.iter().map(|p| property(p, INDENT)).collect::<Result<Vec<_>>>()?;
        let fields = if fields.is_empty() { String::new() } else { format!("\n{}\n", fields.join(",\n")) };
        lines.push(format!("interface parameters {{{fields}}}"));
    }
    for (name, schema) in registry.definitions.clone() {
        let body = shape(&Schema::read(schema, &mut registry)?.shape, "")?;
        lines.extend(description(schema.get("description"), "")?);
        lines.push(format!("interface {name} {body}"));
    }
    lines.extend(description(definition.get("description"), "")?);
    let name = definition.get("name").map_or_else(|| "function".to_owned(), pyjson::str);
    let argument = if recursive { "parameters".to_owned() } else { object(&parameters, "")? };
    lines.push(format!("type {name} = (_: {argument}) => any;"));
    Ok(lines.join("\n"))
}

fn shape(shape: &Shape<'_>, indent: &str) -> Result<String> {
    Ok(match shape {
        Shape::Scalar("integer") => "number".to_owned(),
        Shape::Scalar(name) | Shape::Reference(name) => (*name).to_owned(),
        Shape::Object(fields) => object(fields, indent)?,
        Shape::Array(item) => array(item, indent)?,
        Shape::Enum(values) => {
            let literal = |v: &Value| v.as_str().map_or_else(|| pyjson::repr(v), |s| format!("\"{s}\""));
            values.iter().map(literal).collect::<Vec<_>>().join(" | ")
        }
        Shape::AnyOf(types) => {
            types.iter().map(|t| self::shape(&t.shape, indent)).collect::<Result<Vec<_>>>()?.join(" | ")
        }
        Shape::Union(names) => names.join(" | "),
    })
}

fn array(item: &Schema<'_>, indent: &str) -> Result<String> {
    let inner = format!("{indent}{INDENT}");
    let comment = item.comment(&inner)?;
    if comment.is_empty() {
        return Ok(format!("Array<{}>", shape(&item.shape, indent)?));
    }
    Ok(format!("Array<\n{comment}{inner}{}\n{indent}>", shape(&item.shape, &inner)?))
}

fn object(fields: &Object<'_>, indent: &str) -> Result<String> {
    let inner = format!("{indent}{INDENT}");
    let mut properties: Vec<_> = fields.properties.iter().collect();
    properties.sort_by_key(|p| (p.optional, p.name));
    let mut lines = properties.into_iter().map(|p| property(p, &inner)).collect::<Result<Vec<_>>>()?;
    match &fields.additional {
        Additional::Unsaid => {}
        Additional::Any => lines.push(format!("{inner}[k: string]: any")),
        Additional::Never => lines.push(format!("{inner}[k: string]: never")),
        Additional::Typed(schema) => {
            lines.push(format!("{inner}[k: string]: {}", shape(&schema.shape, &inner)?))
        }
        Additional::Unknown => return Err(Unsupported),
    }
    if lines.is_empty() {
        return Ok("{}".to_owned());
    }
    Ok(format!("{{\n{}\n{indent}}}", lines.join(",\n")))
}

fn property(p: &Property<'_>, indent: &str) -> Result<String> {
    let mut out = p.schema.comment(indent)?;
    if let Some(default) = p.default {
        let default = match default {
            Value::Bool(_) | Value::Number(_) => pyjson::repr(default),
            other => pyjson::dumps(other, &pyjson::Style::default()),
        };
        out += &format!("{indent}// Default: {default}\n");
    }
    let mark = if p.optional { "?" } else { "" };
    Ok(out + &format!("{indent}{}{mark}: {}", p.name, shape(&p.schema.shape, indent)?))
}
