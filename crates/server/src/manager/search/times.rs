//! Times in queries and attributes.

/// Nanoseconds since 1970 of `YYYY-MM-DD`, or of that with `THH:MM`, seconds, and a fraction; in UTC, with or without a
/// final `Z`. `None` for any other text.
pub(super) fn time_ns(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, clock) = match text.split_once(['T', ' ']) {
        Some((date, clock)) => (date, Some(clock)),
        None => (text, None),
    };
    let seconds = days(date)?.checked_mul(86_400)?;
    let (within, fraction_ns) = clock.map_or(Some((0, 0)), seconds_of)?;
    seconds.checked_add(within)?.checked_mul(1_000_000_000)?.checked_add(fraction_ns)
}

/// A number of exactly so many digits.
fn digits(text: &str, count: usize) -> Option<i64> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Days since 1970 of a date of the Gregorian calendar.
///
/// Source: Hinnant, "chrono-compatible low-level date algorithms", `days_from_civil`.
fn days(date: &str) -> Option<i64> {
    let mut parts = date.split('-');
    let (year, month, day) =
        (digits(parts.next()?, 4)?, digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if parts.next().is_some() || !(1..=longest).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Seconds since midnight, and nanoseconds.
fn seconds_of(clock: &str) -> Option<(i64, i64)> {
    let mut parts = clock.split(':');
    let (hour, minute) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let seconds = parts.next().unwrap_or("00");
    let (second, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let second = digits(second, 2)?;
    let is_time = hour < 24 && minute < 60 && second < 60 && parts.next().is_none() && fraction.len() <= 9;
    let fraction_ns = digits(&format!("{fraction:0<9}"), 9)?;
    is_time.then_some((hour * 3600 + minute * 60 + second, fraction_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // `date -u -d TEXT +%s`, GNU coreutils 9.1.
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2026-11-01", 1_793_491_200),
            ("2024-02-29T23:59:59Z", 1_709_251_199),
            ("2000-03-01 00:01", 951_868_860),
            ("1969-12-31T23:59:58", -2),
        ] {
            assert_eq!(time_ns(text), Some(seconds * 1_000_000_000), "{text}");
        }
        assert_eq!(time_ns("1970-01-01T00:00:00.25"), Some(250_000_000));
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-11-31",
            "2026-11-01T",
            "2026-11-01T24:00",
            "2026-11-01T10:00:61",
            "2026-11-01-01",
            "2026-11-1",
            "9999-01-01",
            "1970-01-01T00:00:00.1234567890",
        ] {
            assert_eq!(time_ns(text), None, "{text}");
        }
    }
}
