//! Extents of shapes: `T`, `groups*K`, `E+1`, `2*C+C*C`, `(C+1)*D`, `ceil(N/block_size)`.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Expr {
    Number(i64),
    Symbol(String),
    Add(Box<Expr>, Box<Expr>),
    Sub(Box<Expr>, Box<Expr>),
    Mul(Box<Expr>, Box<Expr>),
    CeilDiv(Box<Expr>, Box<Expr>),
}

impl TryFrom<String> for Expr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut parser = Parser { rest: &text };
        let expr = parser.sum()?;
        if parser.rest.is_empty() { Ok(expr) } else { Err(format!("`{}` is left over in `{text}`", parser.rest)) }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Result<Expr, String> {
        let mut left = self.product()?;
        loop {
            if self.eat("+") {
                left = Expr::Add(Box::new(left), Box::new(self.product()?));
            } else if self.eat("-") {
                left = Expr::Sub(Box::new(left), Box::new(self.product()?));
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<Expr, String> {
        let mut left = self.atom()?;
        while self.eat("*") {
            left = Expr::Mul(Box::new(left), Box::new(self.atom()?));
        }
        Ok(left)
    }

    fn atom(&mut self) -> Result<Expr, String> {
        if self.eat("ceil(") {
            let over = self.sum()?;
            let closed = self.eat("/");
            let under = self.sum()?;
            return if closed && self.eat(")") {
                Ok(Expr::CeilDiv(Box::new(over), Box::new(under)))
            } else {
                Err("ceil(a/b) is the only call".to_owned())
            };
        }
        if self.eat("(") {
            let inner = self.sum()?;
            return if self.eat(")") { Ok(inner) } else { Err("unclosed parenthesis".to_owned()) };
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if word.is_empty() {
            Err(format!("a symbol or number is expected before `{rest}`"))
        } else if let Ok(number) = word.parse() {
            Ok(Expr::Number(number))
        } else {
            Ok(Expr::Symbol(word.to_owned()))
        }
    }
}

impl Expr {
    /// Symbols that occur.
    pub(crate) fn symbols(&self) -> BTreeSet<&str> {
        match self {
            Expr::Number(_) => BTreeSet::new(),
            Expr::Symbol(name) => BTreeSet::from([name.as_str()]),
            Expr::Add(a, b) | Expr::Sub(a, b) | Expr::Mul(a, b) | Expr::CeilDiv(a, b) => {
                let mut all = a.symbols();
                all.extend(b.symbols());
                all
            }
        }
    }

    /// As Rust code over `i64` locals named by [`local`].
    pub(crate) fn rust(&self) -> String {
        self.rust_with(&local)
    }

    /// As Rust code over `i64` values that `name` gives to symbols.
    pub(crate) fn rust_with(&self, name: &impl Fn(&str) -> String) -> String {
        match self {
            Expr::Number(n) => n.to_string(),
            Expr::Symbol(symbol) => name(symbol),
            Expr::Add(a, b) => format!("({} + {})", a.rust_with(name), b.rust_with(name)),
            Expr::Sub(a, b) => format!("({} - {})", a.rust_with(name), b.rust_with(name)),
            Expr::Mul(a, b) => {
                let factor = match **a {
                    Expr::Number(n) => format!("{n}i64"),
                    _ => a.rust_with(name),
                };
                format!("{factor}.saturating_mul({})", b.rust_with(name))
            }
            Expr::CeilDiv(a, b) => format!("ceil_div({}, {})", a.rust_with(name), b.rust_with(name)),
        }
    }

    fn rust_operand(&self) -> String {
        match self {
            Expr::Number(n) => format!("{n}i64"),
            other => other.rust(),
        }
    }

    /// Rust code for the value of `unknown` if this expression equals `value`, where that is a plain rearrangement.
    pub(crate) fn solve(&self, unknown: &str, value: &str) -> Option<String> {
        let holds = |e: &Expr| e.symbols().contains(unknown);
        match self {
            Expr::Symbol(name) if name == unknown => Some(value.to_owned()),
            Expr::Add(a, b) if holds(a) && !holds(b) => a.solve(unknown, &format!("({value} - {})", b.rust())),
            Expr::Add(a, b) if holds(b) && !holds(a) => b.solve(unknown, &format!("({value} - {})", a.rust())),
            Expr::Sub(a, b) if holds(a) && !holds(b) => a.solve(unknown, &format!("({value} + {})", b.rust())),
            Expr::Mul(a, b) if holds(a) && !holds(b) => {
                a.solve(unknown, &format!("({value} / {}.max(1))", b.rust_operand()))
            }
            Expr::Mul(a, b) if holds(b) && !holds(a) => {
                b.solve(unknown, &format!("({value} / {}.max(1))", a.rust_operand()))
            }
            _ => None,
        }
    }
}

/// Name of the local that holds a symbol.
pub(crate) fn local(symbol: &str) -> String {
    format!("d_{}", symbol.to_lowercase())
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Number(n) => write!(f, "{n}"),
            Expr::Symbol(name) => f.write_str(name),
            Expr::Add(a, b) => write!(f, "{a}+{b}"),
            Expr::Sub(a, b) => write!(f, "{a}-{b}"),
            Expr::Mul(a, b) => {
                let side = |e: &Expr| match e {
                    Expr::Add(..) | Expr::Sub(..) => format!("({e})"),
                    _ => e.to_string(),
                };
                write!(f, "{}*{}", side(a), side(b))
            }
            Expr::CeilDiv(a, b) => write!(f, "ceil({a}/{b})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_print_as_they_are_written() {
        for text in ["T", "groups*K", "E+1", "2*C+C*C", "(C+1)*D", "ceil(N/block_size)", "N-1"] {
            assert_eq!(Expr::try_from(text.to_owned()).unwrap().to_string(), text);
        }
        for text in ["", "*", "(T", "ceil(T)", "T T"] {
            assert!(Expr::try_from(text.to_owned()).is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn an_unknown_is_isolated() {
        let expr = Expr::try_from("(C+1)*D".to_owned()).unwrap();
        assert_eq!(expr.solve("D", "x").unwrap(), "(x / (d_c + 1).max(1))");
        assert_eq!(expr.solve("C", "x").unwrap(), "((x / d_d.max(1)) - 1)");
        assert!(Expr::try_from("2*C+C*C".to_owned()).unwrap().solve("C", "x").is_none());
    }
}
