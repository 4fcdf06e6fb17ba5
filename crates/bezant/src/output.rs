//! Results, on standard output, and what people are told besides, on standard error.

use std::fmt::{Arguments, Display};
use std::io::{ErrorKind, IsTerminal as _, Write as _, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that SIGPIPE ended, which is what shells expect of one whose reader has gone.
const READER_GONE: i32 = 141;
/// The exit code where the result could not be written: what it would have told of may have taken place.
const NOT_WRITTEN: i32 = 4;

/// A result was written.
static HAS_RESULT: AtomicBool = AtomicBool::new(false);

/// Whether a line of results was written.
pub fn has_result() -> bool {
    HAS_RESULT.load(Ordering::Relaxed)
}

/// Writes a line. Where nobody reads any more, as after `| head`, the program ends without a word.
pub fn line(text: Arguments<'_>) {
    HAS_RESULT.store(true, Ordering::Relaxed);
    if let Err(error) = writeln!(stdout(), "{text}") {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(READER_GONE);
        }
        crate::tell!("error: cannot write to standard output: {error}");
        std::process::exit(NOT_WRITTEN);
    }
}

/// Writes a line of results, if somebody reads them.
pub fn line_if_read(line: &impl Display) {
    drop(writeln!(stdout(), "{line}"));
}

/// Writes a line to standard error. Where nobody reads that, what is done is done all the same.
pub fn tell(text: Arguments<'_>) {
    drop(writeln!(stderr(), "{text}"));
}

/// `eprintln!`, by way of `tell`.
#[macro_export]
macro_rules! tell {
    ($($argument:tt)*) => {
        $crate::output::tell(format_args!($($argument)*))
    };
}

/// `println!`, by way of `line`.
#[macro_export]
macro_rules! out {
    ($($argument:tt)*) => {
        $crate::output::line(format_args!($($argument)*))
    };
}

/// What others said, fit for a terminal: on one line, no longer than `letters_max`, and without anything that could steer the terminal or
/// change the order in which letters are shown.
pub fn tame(text: &str, letters_max: usize) -> String {
    let steers = |letter: char| {
        letter.is_control() || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut out = String::new();
    for (at, letter) in text.chars().enumerate() {
        if at == letters_max {
            out.push('…');
            break;
        }
        if steers(letter) { out.extend(letter.escape_unicode()) } else { out.push(letter) }
    }
    out
}

/// How many letters fit on a line, where results go to a terminal, or `COLUMNS` says it; `None` where lines may be of any length.
pub fn line_letters() -> Option<usize> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || stdout().is_terminal().then(|| rustix::termios::tcgetwinsize(stdout()).ok()).flatten();
    said.or_else(|| of_terminal().map(|size| usize::from(size.ws_col))).filter(|letters| *letters > 0)
}

/// Breaks `text` between words into lines of at most `letters`, all but the first indented. A longer word has a line of its own.
pub fn wrap(text: &str, letters: Option<usize>, indent: usize) -> String {
    let Some(letters) = letters else { return text.to_owned() };
    let (mut out, mut used) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > letters {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            used = indent;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_cannot_steer_a_terminal() {
        assert_eq!(tame("serving", 20), "serving");
        assert_eq!(tame("\u{1b}[2Jx\r\n\u{9b}1m\u{202e}y", 20), "\\u{1b}[2Jx\\u{d}\\u{a}\\u{9b}1m\\u{202e}y");
        assert_eq!(tame("abcdef", 3), "abc…");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three four", Some(9), 2), "one two\n  three\n  four");
        assert_eq!(wrap("a longest-word b", Some(6), 0), "a\nlongest-word\nb");
        assert_eq!(wrap("one two", None, 2), "one two");
    }
}
