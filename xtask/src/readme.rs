//! The README's commands, so that what it promises is what runs.

use anyhow::{Context, Result, ensure};

/// The comment above the block with the first command that a newcomer runs.
pub const FIRST_COMMAND: &str = "<!-- first command -->";
/// The comment above the block with the command that runs the tests.
pub const TEST_COMMAND: &str = "<!-- test command -->";

/// The one line of the fenced block that follows `mark` in `text`.
pub fn command<'a>(text: &'a str, mark: &str) -> Result<&'a str> {
    let (_, after) = text.split_once(mark).with_context(|| format!("README.md has no `{mark}`"))?;
    let mut lines = after.lines().map(str::trim).skip_while(|line| line.is_empty());
    let opening = lines.next().unwrap_or_default();
    ensure!(opening.starts_with("```"), "README.md: after `{mark}` comes a fenced block, not `{opening}`");
    let command = lines.next().filter(|line| !line.is_empty() && !line.starts_with("```"));
    let command = command.with_context(|| format!("README.md: the block after `{mark}` is empty"))?;
    ensure!(lines.next() == Some("```"), "README.md: the block after `{mark}` holds one line, so that it can be copied");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_the_line_in_the_block_below_its_mark() {
        let text = "# A\n\n<!-- first command -->\n\n```sh\ncargo run\n```\n\n<!-- test command -->\n```sh\ncargo test\n```\n";
        assert_eq!(command(text, FIRST_COMMAND).expect("it is there"), "cargo run");
        assert_eq!(command(text, TEST_COMMAND).expect("it is there"), "cargo test");
    }

    #[test]
    fn what_is_not_one_line_in_a_block_is_refused() {
        for text in ["", "<!-- first command -->\ncargo run", "<!-- first command -->\n```\n```", "<!-- first command -->\n```\na\nb\n```"]
        {
            assert!(command(text, FIRST_COMMAND).is_err(), "{text:?}");
        }
    }
}
