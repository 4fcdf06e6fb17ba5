//! The program `bezant`: the product, and nothing but the product. Everything is in the library.

use std::process::ExitCode;

use bezant::{Command, EXIT_CODES, VERSION, ask_for_json, conduct};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};

/// A transactional database that keeps its promises when some of its servers and clients lie.
#[derive(Parser)]
#[command(name = "bezant", version = VERSION.as_str(), after_help = format!("Begin with:\n  bezant dev --exec 'put a 1; get a'\n\n{EXIT_CODES}"))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let Cli { command } = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    conduct(command.cores(), ask_for_json(&matches), command.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the shell shows before each line that it reads: what follows is not for this program's command line.
    const PROMPTS: [&str; 2] = ["bezant> ", "bezant (in transaction)> "];
    /// How many examples there are at least: with fewer, the test does not find them any more.
    const EXAMPLES_MIN: usize = 50;

    /// The lines of examples in the help of `command` and of all commands below it: those that are indented.
    fn examples(command: &clap::Command, found: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
        found.extend(lines.filter(|line| !PROMPTS.iter().any(|prompt| line.starts_with(prompt))).map(str::to_owned));
        for one in command.get_subcommands() {
            examples(one, found);
        }
    }

    /// The calls of this program in a line of a system's shell, in words. Where output goes is no word of a call, and `$(…)` stands for a
    /// number.
    fn calls(line: &str) -> Vec<Vec<String>> {
        let (mut commands, mut words): (Vec<Vec<String>>, Vec<String>) = (Vec::new(), Vec::new());
        let mut word: Option<String> = None;
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\'' | '"' => word.get_or_insert_default().extend(letters.by_ref().take_while(|next| *next != letter)),
                '$' if letters.peek() == Some(&'(') => {
                    letters.by_ref().take_while(|next| *next != ')').for_each(drop);
                    word.get_or_insert_default().push('1');
                }
                ' ' => words.extend(word.take()),
                '&' | '|' | '>' | ';' => {
                    words.extend(word.take());
                    commands.push(std::mem::take(&mut words));
                }
                letter => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word);
        commands.push(words);
        commands.retain(|words| words.first().is_some_and(|program| program == "bezant"));
        commands
    }

    #[test]
    fn every_example_of_the_help_is_a_call_that_is_understood() {
        let mut lines = Vec::new();
        examples(&Cli::command(), &mut lines);
        let calls: Vec<(&String, Vec<String>)> =
            lines.iter().flat_map(|line| calls(line).into_iter().map(move |words| (line, words))).collect();
        assert!(calls.len() >= EXAMPLES_MIN, "{} examples", calls.len());
        for (line, words) in calls {
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{line}\n{error}");
            }
        }
    }

    #[test]
    fn a_line_is_split_as_a_shell_does_it() {
        let split = calls("printf 'a b' > c && bezant put a \"two words\" --pid $(pidof bezant) > d && bezant down");
        assert_eq!(split, [vec!["bezant", "put", "a", "two words", "--pid", "1"], vec!["bezant", "down"]]);
    }

    #[test]
    fn the_version_says_which_others_it_understands() {
        assert!(Cli::command().render_version().contains("(frame version "));
    }
}
