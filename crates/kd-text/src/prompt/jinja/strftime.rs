//! `strftime_now`: the date, for templates that tell it to the model. Always in UTC.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::Error;

use super::convert::invalid;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The present moment in `format`, with the directives of C's `strftime` that concern date and time of day.
pub(super) fn now(format: &str) -> Result<String, Error> {
    let since =
        SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| invalid(format!("strftime_now: {e}")))?;
    strftime(format, since.as_secs())
}

fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let (year, month, day) = civil(days);
    let weekday = ((days + 4) % 7) as usize;
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = chars.next();
        let _ = match directive {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:>2}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{}", DAYS[weekday]),
            Some('a') => write!(out, "{}", &DAYS[weekday][..3]),
            Some('j') => write!(out, "{:03}", days - days_before(year) + 1),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('%') => write!(out, "%"),
            Some(other) => return Err(invalid(format!("strftime_now: %{other} is not supported"))),
            None => return Err(invalid("strftime_now: the format ends in a lone %".to_owned())),
        };
    }
    Ok(out)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from 1970-01-01 to the first day of `year`.
fn days_before(year: u64) -> u64 {
    let leaps = |y: u64| y / 4 - y / 100 + y / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Year, month (from 1) and day (from 1) of a day counted from 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut rest = days - days_before(year);
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if rest < length {
            return (year, month, rest + 1);
        }
        rest -= length;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let all = "%F %T %A %a %B %b %j %y %I%p %e%%";
        assert_eq!(strftime(all, 0).unwrap(), "1970-01-01 00:00:00 Thursday Thu January Jan 001 70 12AM  1%");
        assert_eq!(
            strftime(all, 1_709_210_096).unwrap(),
            "2024-02-29 12:34:56 Thursday Thu February Feb 060 24 12PM 29%"
        );
        assert_eq!(
            strftime(all, 4_133_980_799).unwrap(),
            "2100-12-31 23:59:59 Friday Fri December Dec 365 00 11PM 31%"
        );
        assert!(strftime("%Q", 0).is_err() && strftime("%", 0).is_err());
    }
}
