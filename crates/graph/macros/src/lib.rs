//! `#[derive(Node)]`: a node's schema and argument parsing from its struct.
//!
//! ```ignore
//! /// Turns a picture into its negative.           (doc comment: the description)
//! #[derive(Node)]
//! #[node(id = "ImageInvert", v1, module = "nodes", display = "Invert Image", category = "image",
//!        outputs("IMAGE"), output_node, hidden(prompt = "PROMPT"))]
//! pub struct ImageInvert {
//!     /// The picture to turn.                       (doc comment: the tooltip)
//!     image: Image,
//!     #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
//!     strength: f64,
//!     #[input(choices = ["a", "b"], default = "a")]
//!     mode: String,
//!     #[input(listed = "models/checkpoints")]
//!     ckpt_name: String,
//!     #[input(optional)] mask: Option<Mask>,
//!     #[input(optional, or = 3)] count: i64,
//!     #[input(spec = some_input())] dynamic: Value,
//!     #[input(rest)] others: Map,
//! }
//! ```
//! `outputs(..)` holds strings or expressions of type `Output`. Any other `key = value` of `input` becomes a wire option,
//! in the written order.

use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Data, DeriveInput, Expr, Fields, Ident, Lit, LitStr, Meta, Token, parse_macro_input,
};

#[proc_macro_derive(Node, attributes(node, input))]
pub fn derive_node(tokens: TokenStream) -> TokenStream {
    let input = parse_macro_input!(tokens as DeriveInput);
    expand(&input)
        .unwrap_or_else(|e| e.to_compile_error())
        .into()
}

/// `key`, `key = expr` or `key(items)`.
enum Item {
    Flag(Ident),
    Pair(Ident, Expr),
    List(Ident, proc_macro2::TokenStream),
}

impl Parse for Item {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let key: Ident = input.call(syn::ext::IdentExt::parse_any)?;
        if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            return Ok(Self::Pair(key, input.parse()?));
        }
        if input.peek(syn::token::Paren) {
            let content;
            syn::parenthesized!(content in input);
            return Ok(Self::List(key, content.parse()?));
        }
        Ok(Self::Flag(key))
    }
}

fn items(attrs: &[Attribute], name: &str) -> syn::Result<Vec<Item>> {
    let mut all = Vec::new();
    for attr in attrs.iter().filter(|a| a.path().is_ident(name)) {
        if matches!(attr.meta, Meta::Path(_)) {
            continue;
        }
        all.extend(attr.parse_args_with(Punctuated::<Item, Token![,]>::parse_terminated)?);
    }
    Ok(all)
}

fn doc(attrs: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attr in attrs.iter().filter(|a| a.path().is_ident("doc")) {
        if let Meta::NameValue(nv) = &attr.meta
            && let Expr::Lit(lit) = &nv.value
            && let Lit::Str(s) = &lit.lit
        {
            lines.push(s.value().trim().to_owned());
        }
    }
    lines.join(" ").trim().to_owned()
}

fn expand(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let ident = &input.ident;
    let mut id = quote!(stringify!(#ident));
    let mut form = quote!(::fresco_graph::Form::V3);
    let mut chain = Vec::new();
    let description = doc(&input.attrs);
    let mut sets = Vec::new();
    for item in items(&input.attrs, "node")? {
        match item {
            Item::Flag(k) => match k.to_string().as_str() {
                "v1" => form = quote!(::fresco_graph::Form::V1),
                "v3" => form = quote!(::fresco_graph::Form::V3),
                "output_node" | "input_is_list" | "deprecated" | "experimental"
                | "not_idempotent" => {
                    sets.push(quote!(schema.#k = true;));
                }
                other => {
                    return Err(syn::Error::new(
                        k.span(),
                        format!("unknown node flag `{other}`"),
                    ));
                }
            },
            Item::Pair(k, e) => match k.to_string().as_str() {
                "id" => id = quote!(#e),
                "display" => chain.push(quote!(.display_name(#e))),
                "category" => chain.push(quote!(.category(#e))),
                "module" => chain.push(quote!(.module(#e))),
                other => {
                    return Err(syn::Error::new(
                        k.span(),
                        format!("unknown node key `{other}`"),
                    ));
                }
            },
            Item::List(k, tokens) => match k.to_string().as_str() {
                "outputs" => {
                    let outputs = syn::parse::Parser::parse2(
                        Punctuated::<Expr, Token![,]>::parse_terminated,
                        tokens,
                    )?;
                    for output in outputs {
                        chain.push(match &output {
                            Expr::Lit(l) if matches!(l.lit, Lit::Str(_)) => {
                                quote!(.output(::fresco_graph::Output::new(#output)))
                            }
                            other => quote!(.output(#other)),
                        });
                    }
                }
                "hidden" => {
                    let pairs = syn::parse::Parser::parse2(
                        Punctuated::<Item, Token![,]>::parse_terminated,
                        tokens,
                    )?;
                    for pair in pairs {
                        let Item::Pair(name, magic) = pair else {
                            return Err(syn::Error::new(k.span(), "hidden wants name = \"MAGIC\""));
                        };
                        chain.push(quote!(.hidden(stringify!(#name), #magic)));
                    }
                }
                other => {
                    return Err(syn::Error::new(
                        k.span(),
                        format!("unknown node list `{other}`"),
                    ));
                }
            },
        }
    }

    let Data::Struct(data) = &input.data else {
        return Err(syn::Error::new(ident.span(), "a node is a struct"));
    };
    let mut takes = Vec::new();
    match &data.fields {
        Fields::Unit => {}
        Fields::Named(fields) => {
            for field in &fields.named {
                let (input, take) = expand_field(field)?;
                chain.extend(input);
                takes.push(take);
            }
        }
        Fields::Unnamed(_) => return Err(syn::Error::new(ident.span(), "inputs are named fields")),
    }
    let construct = if matches!(data.fields, Fields::Unit) {
        quote!(Self)
    } else {
        quote!(Self { #(#takes),* })
    };
    Ok(quote! {
        impl ::fresco_graph::NodeSchema for #ident {
            fn schema() -> ::fresco_graph::Schema {
                #[allow(unused_mut, clippy::allow_attributes, reason = "not every node sets flags")]
                let mut schema = ::fresco_graph::Schema::new(#id, #form).description(#description) #(#chain)*;
                #(#sets)*
                schema
            }
            fn from_args(
                #[allow(unused_mut, unused_variables, clippy::allow_attributes, reason = "a node may have no inputs")]
                mut args: ::fresco_graph::Args,
            ) -> ::core::result::Result<Self, ::fresco_graph::NodeError> {
                Ok(#construct)
            }
        }
    })
}

/// The schema call (none for `rest`) and the constructor entry of one field.
fn expand_field(
    field: &syn::Field,
) -> syn::Result<(Option<proc_macro2::TokenStream>, proc_macro2::TokenStream)> {
    let ident = field.ident.as_ref().expect("named fields have names");
    let ty = &field.ty;
    let plain = ident.to_string();
    let mut name = LitStr::new(plain.trim_start_matches("r#"), ident.span());
    let mut wire_type = quote!(<#ty as ::fresco_graph::FromValue>::IO);
    let mut choices = None;
    let mut spec = None;
    let mut default = None;
    let mut calls = Vec::new();
    for item in items(&field.attrs, "input")? {
        match item {
            Item::Flag(k) if k == "rest" => return Ok((None, quote!(#ident: args.rest().into()))),
            Item::Flag(k) if k == "optional" => calls.push(quote!(.optional())),
            Item::Flag(k) => {
                let key = k.to_string();
                calls.push(quote!(.option(#key, true)));
            }
            Item::Pair(k, e) => match k.to_string().as_str() {
                "name" => {
                    let Expr::Lit(syn::ExprLit {
                        lit: Lit::Str(s), ..
                    }) = &e
                    else {
                        return Err(syn::Error::new(k.span(), "name wants a string"));
                    };
                    name = s.clone();
                }
                "ty" => wire_type = quote!(#e),
                "spec" => spec = Some(e),
                "or" => default = Some(e),
                "choices" => {
                    choices = Some(quote!(::fresco_graph::Choices::Fixed(::std::sync::Arc::new(
                        (#e).into_iter().map(::fresco_graph::Value::from).collect()
                    ))));
                }
                "listed" => choices = Some(quote!(::fresco_graph::Choices::Listed((#e).into()))),
                _ => {
                    let key = k.to_string();
                    let key = key.trim_start_matches("r#");
                    calls.push(quote!(.option(#key, #e)));
                }
            },
            Item::List(k, _) => return Err(syn::Error::new(k.span(), "unknown input list")),
        }
    }
    let tooltip = doc(&field.attrs);
    let tooltip = (!tooltip.is_empty()).then(|| quote!(.tooltip(#tooltip)));
    let base = match (spec, choices) {
        (Some(spec), _) => quote!(#spec),
        (None, Some(choices)) => quote!(::fresco_graph::Input::combo(#name, #choices)),
        (None, None) => quote!(::fresco_graph::Input::new(#name, #wire_type)),
    };
    let take = if let Some(d) = default {
        quote!(#ident: args.take_or(#name, (#d).into())?)
    } else {
        quote!(#ident: args.take(#name)?)
    };
    Ok((Some(quote!(.input(#base #tooltip #(#calls)*))), take))
}
