//! The part of JSON Schema that K2.6's tool declarations can express.
//!
//! Reading follows the published encoder: what it does not know makes the whole declaration fall back to JSON.

use serde_json::{Map, Value};

use super::pyjson::{self, truthy};

/// A schema that the TypeScript form cannot express.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unsupported;

type Result<T> = std::result::Result<T, Unsupported>;

/// Definitions of one function's parameters, filled while schemas are read.
#[derive(Default)]
pub(super) struct Registry<'a> {
    /// `$defs` in order of first appearance; a later one of the same name replaces the body.
    pub(super) definitions: Vec<(&'a str, &'a Value)>,
    /// Whether `#` was referred to.
    pub(super) self_reference: bool,
}

/// A type with its documentation.
pub(super) struct Schema<'a> {
    description: Option<&'a Value>,
    /// Limits such as `minLength`, in the order of their names.
    limits: Vec<(&'a str, &'a Value)>,
    pub(super) shape: Shape<'a>,
}

pub(super) enum Shape<'a> {
    Scalar(&'a str),
    Object(Object<'a>),
    Array(Box<Schema<'a>>),
    Enum(&'a [Value]),
    AnyOf(Vec<Schema<'a>>),
    Union(Vec<&'static str>),
    Reference(&'a str),
}

#[derive(Default)]
pub(super) struct Object<'a> {
    pub(super) properties: Vec<Property<'a>>,
    pub(super) additional: Additional<'a>,
}

/// `additionalProperties`.
#[derive(Default)]
pub(super) enum Additional<'a> {
    #[default]
    Unsaid,
    Any,
    Never,
    Typed(Box<Schema<'a>>),
    Unknown,
}

pub(super) struct Property<'a> {
    pub(super) name: &'a str,
    pub(super) schema: Schema<'a>,
    pub(super) optional: bool,
    pub(super) default: Option<&'a Value>,
}

impl<'a> Schema<'a> {
    fn bare(shape: Shape<'a>) -> Self {
        Self { description: None, limits: Vec::new(), shape }
    }

    fn documented(map: &'a Map<String, Value>, limits: &[&'a str], shape: Shape<'a>) -> Self {
        let limits = limits.iter().filter_map(|&key| Some((key, map.get(key)?))).collect();
        Self { description: map.get("description"), limits, shape }
    }

    /// Reads a schema.
    pub(super) fn read(value: &'a Value, registry: &mut Registry<'a>) -> Result<Self> {
        let map = match value {
            Value::Bool(true) => return Ok(Self::bare(Shape::Scalar("any"))),
            Value::Bool(false) => return Ok(Self::bare(Shape::Scalar("null"))),
            Value::Object(map) if map.is_empty() => return Ok(Self::bare(Shape::Scalar("any"))),
            Value::Object(map) => map,
            _ => return Err(Unsupported),
        };
        if let Some(reference) = map.get("$ref") {
            let name = resolve(reference, registry)?;
            return Ok(Self::documented(map, &[], Shape::Reference(name)));
        }
        if let Some(types) = map.get("anyOf") {
            let types = types.as_array().ok_or(Unsupported)?;
            let types = types.iter().map(|t| Self::read(t, registry)).collect::<Result<_>>()?;
            return Ok(Self::documented(map, &[], Shape::AnyOf(types)));
        }
        if let Some(values) = map.get("enum") {
            let values = values.as_array().ok_or(Unsupported)?;
            check_enum(values, map.get("type"))?;
            return Ok(Self::documented(map, &[], Shape::Enum(values)));
        }
        match map.get("type").ok_or(Unsupported)? {
            Value::Array(names) => {
                let names = names.iter().map(union_member).collect::<Result<_>>()?;
                Ok(Self::documented(map, &[], Shape::Union(names)))
            }
            Value::String(name) => match name.as_str() {
                "object" => Ok(Self::documented(map, &[], Shape::Object(Object::read(map, registry)?))),
                "array" => {
                    let item = match map.get("items").filter(|items| truthy(items)) {
                        Some(items) => Self::read(items, registry)?,
                        None => Self::bare(Shape::Scalar("any")),
                    };
                    Ok(Self::documented(map, &["maxItems", "minItems"], Shape::Array(Box::new(item))))
                }
                "string" => {
                    Ok(Self::documented(map, &["maxLength", "minLength", "pattern"], Shape::Scalar(name)))
                }
                "number" | "integer" => {
                    Ok(Self::documented(map, &["maximum", "minimum"], Shape::Scalar(name)))
                }
                _ => Ok(Self::documented(map, &[], Shape::Scalar(name))),
            },
            _ => Err(Unsupported),
        }
    }

    /// The comment lines above a field or an array's item.
    pub(super) fn comment(&self, indent: &str) -> Result<String> {
        let mut out = match description(self.description, indent)? {
            Some(text) => text + "\n",
            None => String::new(),
        };
        if !self.limits.is_empty() {
            let limits: Vec<_> =
                self.limits.iter().map(|(k, v)| format!("{k}: {}", pyjson::str(v))).collect();
            out += &format!("{indent}// {}\n", limits.join(", "));
        }
        Ok(out)
    }
}

impl<'a> Object<'a> {
    /// Reads an object's properties; its own `type` is not looked at, as a function's parameters need none.
    pub(super) fn read(map: &'a Map<String, Value>, registry: &mut Registry<'a>) -> Result<Self> {
        if let Some(definitions) = map.get("$defs").filter(|d| truthy(d)) {
            for (name, schema) in definitions.as_object().ok_or(Unsupported)? {
                match registry.definitions.iter_mut().find(|(known, _)| known == name) {
                    Some(entry) => entry.1 = schema,
                    None => registry.definitions.push((name, schema)),
                }
            }
        }
        let additional = match map.get("additionalProperties") {
            None | Some(Value::Null) => Additional::Unsaid,
            Some(Value::Bool(true)) => Additional::Any,
            Some(Value::Bool(false)) => Additional::Never,
            Some(schema @ Value::Object(_)) => Additional::Typed(Box::new(Schema::read(schema, registry)?)),
            Some(_) => Additional::Unknown,
        };
        let Some(properties) = map.get("properties") else {
            return Ok(Self { properties: Vec::new(), additional });
        };
        let required = match map.get("required") {
            None => &[],
            Some(required) => required.as_array().ok_or(Unsupported)?.as_slice(),
        };
        let property = |(name, schema): (&'a String, &'a Value)| {
            Ok(Property {
                name,
                optional: !required.iter().any(|r| r == name),
                default: schema.get("default").filter(|d| !d.is_null()),
                schema: Schema::read(schema, registry)?,
            })
        };
        let properties =
            properties.as_object().ok_or(Unsupported)?.iter().map(property).collect::<Result<_>>()?;
        Ok(Self { properties, additional })
    }
}

/// The name of what `$ref` points to: `#` is the function's parameters, `#/$defs/NAME` a definition.
fn resolve<'a>(reference: &'a Value, registry: &mut Registry<'a>) -> Result<&'a str> {
    let reference = reference.as_str().ok_or(Unsupported)?;
    if reference == "#" {
        registry.self_reference = true;
        return Ok("parameters");
    }
    let path = reference.strip_prefix("#/$defs/").ok_or(Unsupported)?;
    let name = path.rsplit('/').next().unwrap_or(path);
    match registry.definitions.iter().find(|(known, _)| *known == name) {
        Some((_, Value::Object(_))) => Ok(name),
        _ => Err(Unsupported),
    }
}

fn union_member(name: &Value) -> Result<&'static str> {
    Ok(match name.as_str().ok_or(Unsupported)? {
        "string" => "string",
        "number" | "integer" => "number",
        "boolean" => "boolean",
        "null" => "null",
        "object" => "{}",
        "array" => "Array<any>",
        _ => return Err(Unsupported),
    })
}

/// Values must fit the declared type; null always does, and Python's booleans are integers.
fn check_enum(values: &[Value], declared: Option<&Value>) -> Result<()> {
    let declared = match declared {
        Some(Value::Array(names)) => match names.as_slice() {
            [one] => Some(one),
            [a, b] if a == "null" => Some(b),
            [a, b] if b == "null" => Some(a),
            _ => return Err(Unsupported),
        },
        other => other,
    };
    let fits = |value: &Value| match declared.and_then(Value::as_str) {
        Some("string") => value.is_string(),
        Some("number") => value.is_number() || value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64() || value.is_boolean(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if values.iter().all(|v| v.is_null() || fits(v)) { Ok(()) } else { Err(Unsupported) }
}

/// A description as comment lines; `None` if there is nothing to say.
pub(super) fn description(text: Option<&Value>, indent: &str) -> Result<Option<String>> {
    let Some(text) = text.filter(|t| truthy(t)) else { return Ok(None) };
    let text = text.as_str().ok_or(Unsupported)?;
    let line = |line: &str| if line.is_empty() { String::new() } else { format!("{indent}// {line}") };
    Ok(Some(text.split('\n').map(line).collect::<Vec<_>>().join("\n")))
}
