//! Times in the past as people write them: as in RFC 3339, or so long ago.

use std::time::{Duration, SystemTime};

use client::AsOf;

/// What the units of a duration are called, and how many nanoseconds they have.
const UNITS: [(&str, u64); 5] =
    [("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000), ("d", 86_400_000_000_000)];
const SECONDS_A_DAY: i64 = 86_400;

/// A time such as `2026-11-23T18:05:00Z`, `2026-11-23T19:05:00.25+01:00`, `5s ago` or `-5s`.
pub fn as_of(text: &str) -> Result<AsOf, String> {
    let text = text.trim();
    let ago = text.strip_suffix("ago").map(str::trim_end).or_else(|| text.strip_prefix('-'));
    let time = match ago {
        Some(length) => duration(length).map(AsOf::Ago),
        None => rfc_3339(text).map(AsOf::Time),
    };
    time.ok_or_else(|| format!("`{text}` is no time: write one as in 2026-11-23T18:05:00Z, or 5s ago (ms, s, m, h, d)"))
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = (text.get(..digits)?.parse::<u64>().ok()?, text.get(digits..)?.trim());
    let (_, nanoseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_nanos(number.checked_mul(*nanoseconds)?))
}

fn rfc_3339(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let zone = time.find(['Z', 'z', '+', '-'])?;
    let (time, zone) = time.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let east_minutes = match zone.split_at(1) {
        ("Z" | "z", "") => 0,
        (sign, zone) => {
            let [hours, minutes] = numbers(zone, ':', [2, 2]).filter(|[hours, minutes]| *hours < 24 && *minutes < 60)?;
            (hours * 60 + minutes) * if sign == "-" { -1 } else { 1 }
        }
    };
    // A leap second is taken for the first one after it.
    let is_time = hour < 24 && minute < 60 && second <= 60 && (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    let is_fraction = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|digit| digit.is_ascii_digit());
    let seconds = days_since_1970(year, month, day) * SECONDS_A_DAY + hour * 3_600 + (minute - east_minutes) * 60 + second;
    // Nobody kept anything before 1970.
    let seconds = u64::try_from(seconds).ok().filter(|_| is_time && is_fraction)?;
    let nanoseconds: u32 = format!("{fraction:0<9}").parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// The numbers of so many digits that stand in `text`, with a `mark` between them.
fn numbers<const COUNT: usize>(text: &str, mark: char, digits: [usize; COUNT]) -> Option<[i64; COUNT]> {
    let parts: Vec<&str> = text.split(mark).collect();
    let mut numbers = [0; COUNT];
    for ((number, part), digits) in numbers.iter_mut().zip(&parts).zip(digits) {
        *number = part.parse().ok().filter(|_| part.len() == digits && part.bytes().all(|digit| digit.is_ascii_digit()))?;
    }
    (parts.len() == COUNT).then_some(numbers)
}

fn is_leap_year(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap_year(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A time so many nanoseconds after 1970, as [`as_of`] reads it.
pub fn written(nanoseconds: u64) -> String {
    let (seconds, fraction) = ((nanoseconds / 1_000_000_000) as i64, nanoseconds % 1_000_000_000);
    let (mut days, second) = (seconds / SECONDS_A_DAY, seconds % SECONDS_A_DAY);
    // No year is longer than this, so that it is reached from below.
    let mut year = 1970 + days / 366;
    while days_since_1970(year + 1, 1, 1) <= days {
        year += 1;
    }
    days -= days_since_1970(year, 1, 1);
    let mut month = 1;
    while days >= days_of(year, month) {
        days -= days_of(year, month);
        month += 1;
    }
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z", days + 1)
}

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let leap_days_before = |year: i64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    let of_years = (year - 1970) * 365 + leap_days_before(year) - leap_days_before(1970);
    of_years + (1..month).map(|month| days_of(year, month)).sum::<i64>() + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Option<Duration> {
        match as_of(text) {
            Ok(AsOf::Time(time)) => time.duration_since(SystemTime::UNIX_EPOCH).ok(),
            _ => None,
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        let seconds = Duration::from_secs;
        assert_eq!(time("1970-01-01T00:00:00Z"), Some(seconds(0)));
        assert_eq!(time("2000-02-29T12:00:00Z"), Some(seconds(951_825_600)));
        assert_eq!(time("2026-11-23T18:05:00Z"), Some(seconds(1_795_457_100)));
        assert_eq!(time("2026-11-23T19:05:00.25+01:00"), Some(Duration::new(1_795_457_100, 250_000_000)));
        assert_eq!(time("2026-11-23 12:35:00-05:30"), Some(seconds(1_795_457_100)));
        assert_eq!(time("2100-03-01t00:00:00z"), Some(seconds(4_107_542_400)));
    }

    #[test]
    fn what_is_written_is_read_again() {
        assert_eq!(written(951_825_600_000_000_250), "2000-02-29T12:00:00.000000250Z");
        for nanoseconds in [0, 1, 1_795_457_100_250_000_000, 4_107_542_399_999_999_999, 4_107_542_400_000_000_000] {
            assert_eq!(time(&written(nanoseconds)), Some(Duration::from_nanos(nanoseconds)));
        }
    }

    #[test]
    fn durations_are_of_a_unit() {
        let ago = |text| match as_of(text) {
            Ok(AsOf::Ago(ago)) => Some(ago.as_millis()),
            _ => None,
        };
        assert_eq!(["5s ago", "-5s", "5 s ago", "250ms ago"].map(ago), [Some(5_000), Some(5_000), Some(5_000), Some(250)]);
        assert_eq!(["2m ago", "1h ago", "3d ago", "0s ago"].map(ago), [Some(120_000), Some(3_600_000), Some(259_200_000), Some(0)]);
    }

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        for text in [
            "",
            "ago",
            "5 ago",
            "s ago",
            "5x ago",
            "-",
            "5s",
            "now",
            "99999999999999d ago",
            "2026-11-23",
            "2026-11-23T18:05:00",
            "2026-11-23T18:05Z",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+24:00",
            "1969-12-31T23:59:59Z",
            "2026-01-01T00:00:00é",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.1234567890Z",
        ] {
            assert!(as_of(text).is_err_and(|what| what.contains("5s ago")), "{text}");
        }
    }
}
