//! The parts of `plugin-api/src/generated.rs` for those who know an op by its reflection row only: its contract, and the
//! check of a call by names.

use super::catalogue::{Kind, Op};
use super::checks;

/// The contract of a row.
pub(crate) fn contract(op: &Op) -> String {
    let c = &op.contract;
    let class = c.class[..1].to_owned() + &c.class[1..].to_lowercase();
    let terms = c.terms.as_ref().map_or_else(
        || "Terms::NONE".to_owned(),
        |terms| {
            let code = terms.rust_with(&|symbol: &str| format!("extents.of({symbol:?})"));
            format!("Terms {{ text: {:?}, count: |extents| {code} }}", terms.to_string())
        },
    );
    format!(
        "Contract {{ class: Class::{class}, ulps: {}, factor: {:?}, terms: {terms}, bound: {:?}, accumulator: {:?}, \
         rounding: {:?}, denormals: {:?}, nan: {:?}, duplicates: {:?} }}",
        c.ulps.unwrap_or(0),
        c.factor.unwrap_or(0.0),
        c.bound,
        c.accumulator,
        c.rounding,
        c.denormals,
        c.nan,
        c.duplicates
    )
}

/// The function that takes arguments by name and passes them to the op's check; `symbols` are those that the check binds.
pub(crate) fn extents(op: &Op, symbols: &[String]) -> String {
    let mut out = format!(
        "fn extents_of_{}(arguments: &Arguments) -> Result<Extents, ArgError> {{\nlet a = Named::new({:?}, arguments);\n",
        op.name, op.name
    );
    let numbers = || op.args.iter().filter(|arg| arg.kind == Kind::U32);
    for arg in numbers() {
        out += &format!("let {} = a.number({:?})?;\n", arg.field(), arg.field());
    }
    let mut parameters = String::new();
    for arg in &op.args {
        let name = arg.field();
        match (arg.kind, arg.optional) {
            (Kind::Tensor, false) => parameters += &format!("a.tensor({name:?})?, "),
            (Kind::Tensor, true) => parameters += &format!("a.optional({name:?}), "),
            (Kind::TensorList, _) => parameters += &format!("a.list({name:?})?, "),
            _ if checks::is_extent(op, arg) => parameters += &format!("{name}, "),
            _ => {}
        }
    }
    out += &format!("let dims = check_{}({parameters})?;\nOk(Extents::new([", op.name);
    for symbol in symbols {
        out += &format!("({symbol:?}, dims.{}), ", symbol.to_lowercase());
    }
    for arg in numbers() {
        out += &format!("({:?}, {} as usize), ", arg.name, arg.field());
        if arg.shape_symbol() != arg.name {
            out += &format!("({:?}, {} as usize), ", arg.shape_symbol(), arg.field());
        }
    }
    out += "]))\n}\n\n";
    out
}
