//! The `family!` grammar.

use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Ident, LitStr, Token, braced, bracketed};

use crate::decl::{Constant, Family, Grid, Launch, Operand, SharedMember, Variant};
use crate::expr_parse::{comparisons, expr};
use crate::{ARCHS, Arch, At, Comparison, Composite, DType, Diagnostic, Expr, Kind, check};

const SECTIONS: &str = "expected one of: dims, const, variant, require, smem, args, launch, sass";

/// Every family of one declaration file. `file` is used in messages and kept as the families' origin.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn parse_families(file: &str, source: &str) -> Result<Vec<Family>, Diagnostic> {
    let syntax = syn::parse_file(source).map_err(|error| Diagnostic::from_syn(file, &error))?;
    let mut families = Vec::new();
    for item in &syntax.items {
        let family = one_family(item).map_err(|error| Diagnostic::from_syn(file, &error))?;
        let family = Family { file: file.to_owned(), ..family };
        families.push(check::resolve(family)?);
    }
    Ok(families)
}

fn one_family(item: &syn::Item) -> syn::Result<Family> {
    let syn::Item::Macro(item) = item else {
        return Err(syn::Error::new_spanned(item, "expected `family! { … }`"));
    };
    if !item.mac.path.is_ident("family") {
        return Err(syn::Error::new_spanned(&item.mac.path, "expected `family!`"));
    }
    let mut family: Family = item.mac.parse_body()?;
    family.canonical = item.mac.tokens.to_string();
    family.doc = item.attrs.iter().filter_map(doc_line).collect();
    if family.doc.is_empty() {
        return Err(syn::Error::new_spanned(
            &item.mac.path,
            "a family needs a doc comment: what it computes",
        ));
    }
    Ok(family)
}

fn doc_line(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else { return None };
    pair.path.is_ident("doc").then(|| text.value().trim().to_owned())
}

impl Parse for Family {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name: Ident = input.parse()?;
        input.parse::<Token![,]>()?;
        keyword(input, "template")?;
        let template: LitStr = input.parse()?;
        input.parse::<Token![;]>()?;
        let (mut dims, mut constants, mut variants, mut require) = (vec![], vec![], vec![], vec![]);
        let (mut smem, mut operands, mut launch, mut sass) = (vec![], vec![], None, vec![]);
        while !input.is_empty() {
            let section = input.call(Ident::parse_any)?;
            match section.to_string().as_str() {
                "dims" => dims.extend(list(input, dimension)?),
                "const" => constants.extend(list(input, binding)?),
                "variant" => variants.push(variant(input)?),
                "require" => require.extend(list(input, condition)?.concat()),
                "smem" => smem.extend(list(input, shared_member)?),
                "args" => operands.extend(list(input, operand)?),
                "sass" => sass.extend(list(input, instruction)?),
                "launch" if launch.is_none() => launch = Some(launch_section(input, &section)?),
                "launch" => return Err(syn::Error::new(section.span(), "`launch` is given twice")),
                _ => return Err(syn::Error::new(section.span(), SECTIONS)),
            }
        }
        let launch = launch.ok_or_else(|| syn::Error::new(name.span(), "`launch { … }` is missing"))?;
        Ok(Self {
            name: name.to_string(),
            file: String::new(),
            at: name.span().into(),
            doc: Vec::new(),
            template: template.value(),
            canonical: String::new(),
            dims,
            constants,
            variants,
            require,
            smem,
            sass,
            operands,
            launch,
            symbols: Vec::new(),
        })
    }
}

fn keyword(input: ParseStream<'_>, word: &str) -> syn::Result<()> {
    let found = input.call(Ident::parse_any)?;
    if found == word { Ok(()) } else { Err(syn::Error::new(found.span(), format!("expected `{word}`"))) }
}

/// `{ item, item, … }`
fn list<T>(input: ParseStream<'_>, item: fn(ParseStream<'_>) -> syn::Result<T>) -> syn::Result<Vec<T>> {
    let content;
    braced!(content in input);
    Ok(content.parse_terminated(item, Token![,])?.into_iter().collect())
}

/// An expression that ends before `{`, so that sections may follow it.
fn arithmetic(input: ParseStream<'_>) -> syn::Result<Expr> {
    expr(&syn::Expr::parse_without_eager_brace(input)?)
}

fn condition(input: ParseStream<'_>) -> syn::Result<Vec<Comparison>> {
    comparisons(&syn::Expr::parse_without_eager_brace(input)?)
}

/// `NAME = expr`
fn binding(input: ParseStream<'_>) -> syn::Result<(String, Expr)> {
    let name: Ident = input.parse()?;
    input.parse::<Token![=]>()?;
    Ok((name.to_string(), arithmetic(input)?))
}

/// `NAME = expr` or `NAME = [expr, …]`
fn dimension(input: ParseStream<'_>) -> syn::Result<(String, Vec<Expr>)> {
    let name: Ident = input.parse()?;
    input.parse::<Token![=]>()?;
    if !input.peek(syn::token::Bracket) {
        return Ok((name.to_string(), vec![arithmetic(input)?]));
    }
    Ok((name.to_string(), bracket_list(input)?))
}

fn bracket_list(input: ParseStream<'_>) -> syn::Result<Vec<Expr>> {
    let content;
    bracketed!(content in input);
    Ok(content.parse_terminated(arithmetic, Token![,])?.into_iter().collect())
}

/// `NAME { TUNABLE = expr, … } [on architecture] [when condition] [prefer condition]`
fn variant(input: ParseStream<'_>) -> syn::Result<Variant> {
    let name: Ident = input.parse()?;
    let tunables = list(input, binding)?;
    let follows = |word: &str| input.cursor().ident().is_some_and(|(ident, _)| ident == word);
    let on = if follows("on") { Some(architecture(input)?) } else { None };
    let clause = |word: &str| -> syn::Result<Vec<Comparison>> {
        if !follows(word) {
            return Ok(Vec::new());
        }
        keyword(input, word)?;
        condition(input)
    };
    let (when, prefer) = (clause("when")?, clause("prefer")?);
    Ok(Variant { name: name.to_string(), at: name.span().into(), tunables, on, when, prefer })
}

/// `on ARCHITECTURE`
fn architecture(input: ParseStream<'_>) -> syn::Result<Arch> {
    keyword(input, "on")?;
    let name: Ident = input.parse()?;
    Arch::named(&name.to_string()).ok_or_else(|| {
        let known = ARCHS.map(|arch| arch.name).join(", ");
        syn::Error::new(name.span(), format!("unknown architecture `{name}`; known: {known}"))
    })
}

fn dtype(input: ParseStream<'_>) -> syn::Result<DType> {
    let name: Ident = input.parse()?;
    DType::named(&name.to_string()).ok_or_else(|| {
        syn::Error::new(name.span(), format!("unknown element type `{name}`; known: {}", DType::names()))
    })
}

/// `name: dtype[count] [align bytes]`
fn shared_member(input: ParseStream<'_>) -> syn::Result<SharedMember> {
    let name: Ident = input.parse()?;
    input.parse::<Token![:]>()?;
    let dtype = dtype(input)?;
    let mut count = bracket_list(input)?.into_iter();
    let (Some(count), None) = (count.next(), count.next()) else {
        return Err(syn::Error::new(name.span(), format!("`{name}` needs one element count")));
    };
    let align = if input.peek(Token![,]) || input.is_empty() {
        None
    } else {
        keyword(input, "align")?;
        Some(arithmetic(input)?)
    };
    Ok(SharedMember { name: name.to_string(), at: name.span().into(), dtype, count, align })
}

/// `"OPCODE.MODIFIER"`, without spaces: what a line of the disassembly must begin with. `"A+B|C"`: both of the
/// first, or the last.
fn instruction(input: ParseStream<'_>) -> syn::Result<String> {
    let text: LitStr = input.parse()?;
    let value = text.value();
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '.' || c == '_';
    if value.split(['|', '+']).any(|one| one.is_empty() || !one.chars().all(plain)) {
        let message = "expected an instruction as the disassembler spells it, like \"HMMA.16816.F32.BF16\"";
        return Err(syn::Error::new(text.span(), message));
    }
    Ok(value)
}

/// The axes of a composite: everything up to `>`, which no expression contains.
fn angle_list(input: ParseStream<'_>) -> syn::Result<Vec<Expr>> {
    input.parse::<Token![<]>()?;
    let mut tokens = proc_macro2::TokenStream::new();
    while !input.peek(Token![>]) {
        tokens.extend([input.parse::<proc_macro2::TokenTree>()?]);
    }
    input.parse::<Token![>]>()?;
    let axes = |content: ParseStream<'_>| content.parse_terminated(arithmetic, Token![,]);
    Ok(syn::parse::Parser::parse2(axes, tokens)?.into_iter().collect())
}

/// `name: [mut] dtype[axis, …]`, `name: dtype` or `name: composite<axis, …>`
fn operand(input: ParseStream<'_>) -> syn::Result<Operand> {
    let name: Ident = input.parse()?;
    input.parse::<Token![:]>()?;
    let mutable = input.parse::<Option<Token![mut]>>()?.is_some();
    let composite = input.cursor().ident().and_then(|(ident, _)| Composite::named(&ident.to_string()));
    if let Some(composite) = composite {
        input.parse::<Ident>()?;
        let shape = angle_list(input)?;
        if mutable || shape.is_empty() {
            let message =
                format!("`{name}`: a composite is read only and needs a shape, `{}<N, K>`", composite.name);
            return Err(syn::Error::new(name.span(), message));
        }
        let kind = Kind::Composite(composite);
        return Ok(Operand {
            name: name.to_string(),
            at: name.span().into(),
            kind,
            mutable,
            shape: Some(shape),
            boxes: None,
        });
    }
    let kind = Kind::Plain(dtype(input)?);
    let shape = if input.peek(syn::token::Bracket) { Some(bracket_list(input)?) } else { None };
    if mutable && shape.is_none() {
        return Err(syn::Error::new(
            name.span(),
            format!("scalar `{name}` is passed by value and cannot be `mut`"),
        ));
    }
    let boxes = if input.peek(Token![,]) || input.is_empty() { None } else { Some(boxes(input)?) };
    let matrix = kind == Kind::Plain(DType::BF16) && shape.as_ref().is_some_and(|shape| shape.len() == 2);
    if boxes.is_some() && (mutable || !matrix) {
        return Err(syn::Error::new(name.span(), format!("`{name}`: only a bf16 matrix is read in boxes")));
    }
    Ok(Operand { name: name.to_string(), at: name.span().into(), kind, mutable, shape, boxes })
}

/// `boxes [ROWS, COLUMNS]`
fn boxes(input: ParseStream<'_>) -> syn::Result<[Constant; 2]> {
    keyword(input, "boxes")?;
    let content;
    bracketed!(content in input);
    let names = content.parse_terminated(Ident::parse, Token![,])?;
    let constants: Vec<Constant> =
        names.iter().map(|name| Constant { name: name.to_string(), at: name.span().into() }).collect();
    constants.try_into().map_err(|_| content.error("expected two constants, `[ROWS, COLUMNS]`"))
}

fn launch_section(input: ParseStream<'_>, section: &Ident) -> syn::Result<Launch> {
    let content;
    braced!(content in input);
    let (mut grid, mut block, mut min_ctas, mut cluster) = (None, None, Expr::Int(1), None);
    let (mut cooperative, mut pdl, mut optional, mut asked) = (false, false, false, false);
    while !content.is_empty() {
        let word: Ident = content.parse()?;
        match word.to_string().as_str() {
            "grid" => grid = Some(grid_size(&content)?),
            "block" => block = Some(arithmetic(&content)?),
            "min_ctas" => min_ctas = arithmetic(&content)?,
            "cluster" => cluster = Some(arithmetic(&content)?),
            "cooperative" => cooperative = true,
            "pdl" => pdl = true,
            "optional" => optional = true,
            "asked" => asked = true,
            _ => {
                let message =
                    "expected one of: grid, block, min_ctas, cluster, cooperative, pdl, optional, asked";
                return Err(syn::Error::new(word.span(), message));
            }
        }
        if !content.is_empty() {
            content.parse::<Token![,]>()?;
        }
    }
    let missing = |what: &str| syn::Error::new(section.span(), format!("`launch` needs a {what}"));
    Ok(Launch {
        at: At::from(section.span()),
        grid: grid.ok_or_else(|| missing("grid"))?,
        block: block.ok_or_else(|| missing("block"))?,
        min_ctas,
        cluster,
        cooperative,
        pdl,
        optional,
        asked,
    })
}

fn grid_size(input: ParseStream<'_>) -> syn::Result<Grid> {
    let source = syn::Expr::parse_without_eager_brace(input)?;
    match &source {
        syn::Expr::Path(path) if path.path.is_ident("resident") => Ok(Grid::Resident),
        syn::Expr::Tuple(tuple) if tuple.elems.len() <= 3 => {
            Ok(Grid::Blocks(tuple.elems.iter().map(expr).collect::<syn::Result<_>>()?))
        }
        syn::Expr::Tuple(_) => {
            Err(syn::Error::new_spanned(source.to_token_stream(), "a grid has at most three axes"))
        }
        other => Ok(Grid::Blocks(vec![expr(other)?])),
    }
}
