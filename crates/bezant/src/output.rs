//! Results, on standard output.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _, stdout};

/// The exit code of a program that SIGPIPE ended, which is what shells expect of one whose reader has gone.
const READER_GONE: i32 = 141;

/// Writes a line. Where nobody reads any more, as after `| head`, the program ends without a word.
pub fn line(text: Arguments<'_>) {
    if let Err(error) = writeln!(stdout(), "{text}") {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("error: cannot write to standard output: {error}");
        }
        std::process::exit(READER_GONE);
    }
}

/// `println!`, by way of [`line()`].
#[macro_export]
macro_rules! out {
    ($($argument:tt)*) => {
        $crate::output::line(format_args!($($argument)*))
    };
}
