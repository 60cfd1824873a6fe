//! The generated function that checks the arguments of an op: formats, ranks, and extents that agree.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::catalogue::{Arg, Kind, Op};
use super::expr::{Expr, local};

/// Symbols that shapes bind, in order of binding; scalars are not among them.
pub(crate) struct Check {
    /// Symbol names as the catalogue writes them.
    pub(crate) symbols: Vec<String>,
    /// Body of the function.
    pub(crate) body: String,
}

/// Where an extent stands.
struct Place<'a> {
    arg: &'a Arg,
    dim: usize,
    expr: &'a Expr,
}

impl Place<'_> {
    /// Rust code for the extent.
    fn value(&self) -> String {
        let name = self.arg.field();
        match self.arg.kind {
            Kind::TensorList => format!("{name}.extent(0, {})", self.dim),
            _ if self.arg.optional => format!("extent_or_zero({name}, {})", self.dim),
            _ => format!("{name}.shape()[{}]", self.dim),
        }
    }
}

pub(crate) fn build(op: &Op) -> Result<Check> {
    let mut body = String::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for arg in op.args.iter().filter(|a| is_extent(op, a)) {
        let symbol = arg.shape_symbol();
        body += &format!("let {} = i64::from({});\n", local(symbol), arg.field());
        known.insert(symbol.to_owned());
    }
    let scalars = known.clone();

    for arg in op.args.iter().filter(|a| a.is_tensor()) {
        let (name, rank, mask) = (arg.field(), arg.shape.len(), arg.format_mask());
        let f = match (arg.kind, arg.optional) {
            (Kind::TensorList, _) => "tensor_list",
            (_, true) => "optional_tensor",
            _ => "tensor",
        };
        body += &format!("c.{f}({name:?}, {name}, {rank}, {mask:#x})?;\n");
    }

    // Required tensors bind before optional ones, plain symbols before rearranged expressions.
    let mut places: Vec<Place<'_>> = Vec::new();
    for arg in op.args.iter().filter(|a| a.is_tensor()) {
        places.extend(arg.shape.iter().enumerate().map(|(dim, expr)| Place { arg, dim, expr }));
    }
    places.sort_by_key(|p| (p.arg.optional, p.arg.kind == Kind::TensorList));
    let list_lengths: Vec<&Arg> = op.args.iter().filter(|a| a.len.is_some()).collect();
    let all: BTreeSet<String> = places
        .iter()
        .flat_map(|p| p.expr.symbols())
        .chain(list_lengths.iter().flat_map(|a| a.len.as_ref().unwrap().symbols()))
        .map(str::to_owned)
        .collect();
    let mut symbols = Vec::new();
    let mut bound_here: BTreeSet<(String, usize)> = BTreeSet::new();
    while known.len() < all.union(&scalars).count() {
        let before = known.len();
        for arg in &list_lengths {
            if let Some(Expr::Symbol(name)) = &arg.len
                && known.insert(name.clone())
            {
                body += &format!("let {} = {}.len() as i64;\n", local(name), arg.field());
                symbols.push(name.clone());
            }
        }
        for place in &places {
            if let Expr::Symbol(name) = place.expr
                && known.insert(name.clone())
            {
                body += &format!("let {} = {};\n", local(name), place.value());
                symbols.push(name.clone());
                bound_here.insert((place.arg.name.clone(), place.dim));
            }
        }
        if known.len() == before {
            for place in &places {
                let unknown: Vec<&str> = place.expr.symbols().into_iter().filter(|s| !known.contains(*s)).collect();
                if let [name] = unknown[..]
                    && let Some(code) = place.expr.solve(name, &place.value())
                {
                    body += &format!("let {} = {code};\n", local(name));
                    symbols.push(name.to_owned());
                    known.insert(name.to_owned());
                    break;
                }
            }
        }
        ensure!(known.len() > before, "{}: no shape fixes the symbols {:?}", op.name, all.difference(&known));
    }

    for place in &places {
        if bound_here.contains(&(place.arg.name.clone(), place.dim)) && place.arg.kind != Kind::TensorList {
            continue;
        }
        let (name, dim) = (place.arg.field(), place.dim);
        let f = match (place.arg.kind, place.arg.optional) {
            (Kind::TensorList, _) => "list_extent",
            (_, true) => "optional_extent",
            _ => "extent",
        };
        body += &format!("c.{f}({name:?}, {name}, {dim}, {}, {:?})?;\n", place.expr.rust(), place.expr.to_string());
    }
    for arg in op.args.iter().filter(|a| a.like.is_some()) {
        let (name, like) = (arg.field(), arg.like.as_ref().unwrap());
        let f = if arg.optional { "optional_like" } else { "like" };
        body += &format!("c.{f}({name:?}, {name}, {like:?}, {like})?;\n");
    }
    Ok(Check { symbols, body })
}

/// Whether a scalar takes part in shapes; the others are not parameters of the check.
pub(crate) fn is_extent(op: &Op, arg: &Arg) -> bool {
    let exprs = || op.args.iter().flat_map(|a| a.shape.iter().chain(&a.len));
    arg.kind == Kind::U32 && exprs().any(|e| e.symbols().contains(arg.shape_symbol()))
}

/// Parameters of the check function, with their types.
pub(crate) fn parameters(op: &Op) -> String {
    let mut out = String::new();
    for arg in &op.args {
        let ty = match (arg.kind, arg.optional) {
            (Kind::Tensor, false) => "&impl Shaped",
            (Kind::Tensor, true) => "Option<&impl Shaped>",
            (Kind::TensorList, _) => "&impl ShapedList",
            (Kind::U32, _) => "u32",
            (Kind::I32, _) => "i32",
            (Kind::F32, _) => "f32",
        };
        if arg.is_tensor() || is_extent(op, arg) {
            out += &format!("{}: {ty}, ", arg.field());
        }
    }
    out
}
