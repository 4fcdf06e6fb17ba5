//! `bezant-lab detection`: what Sentinel notices of damage, as the table of the book.

use bezant::failure::Done;
use bezant::out;
use clap::Args;
use conformance::sentinel::detection::{lines, table};

/// Damages servers of Sentinel in every way, and says who noticed it, and when
#[derive(Args, Debug)]
pub struct DetectionArgs {}

/// Carries out `bezant-lab detection`.
pub fn run(_args: &DetectionArgs) -> Done {
    out!("{}", table(&lines()).trim_end());
    Done::Well
}
