//! Numbers on the command line: what is wrong is answered with what would be right.

use std::num::IntErrorKind;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Reads a whole number of a range, as the type that holds it.
pub(crate) fn whole<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number)).and_then(|n| T::try_from(n).ok());
        number.ok_or_else(|| {
            let is_too_large = text.parse::<u64>().is_err_and(|e| *e.kind() == IntErrorKind::PosOverflow);
            match (range.start(), range.end()) {
                (least, &u64::MAX) if !is_too_large => format!("it must be a whole number of at least {least}"),
                (least, most) => format!("it must be a whole number from {least} to {most}"),
            }
        })
    }
}

/// Reads a number, of which a whole command says what it may be.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "it must be a number".to_owned())
}

/// Reads a temperature.
pub(crate) fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "it must be a finite number of at least 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers() {
        let any = whole::<u64>(1..=u64::MAX);
        assert_eq!((any("1"), any("18446744073709551615")), (Ok(1), Ok(u64::MAX)));
        for text in ["0", "-1", "", "1.5", "1e3", " 3", "nan"] {
            assert_eq!(any(text).unwrap_err(), "it must be a whole number of at least 1", "{text:?}");
        }
        // "At least 1" would be no help here.
        let too_large = any("18446744073709551616").unwrap_err();
        assert_eq!(too_large, "it must be a whole number from 1 to 18446744073709551615");

        let few = whole::<usize>(0..=10);
        assert_eq!((few("0"), few("10")), (Ok(0), Ok(10)));
        for text in ["11", "-5", "x", "99999999999999999999"] {
            assert_eq!(few(text).unwrap_err(), "it must be a whole number from 0 to 10", "{text:?}");
        }
    }

    #[test]
    fn temperatures() {
        assert_eq!((temperature("0"), temperature("-0"), temperature("1e-3")), (Ok(0.0), Ok(-0.0), Ok(1e-3)));
        for text in ["-1", "nan", "inf", "-inf", "1e39", "", "warm"] {
            assert_eq!(temperature(text).unwrap_err(), "it must be a finite number of at least 0", "{text:?}");
        }
    }
}
