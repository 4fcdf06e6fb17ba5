//! Which of a group's options were written on the command line, and did not just have their defaults.

use clap::error::Error;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// A group of options, with the names of those that were given.
#[derive(Clone, Debug)]
pub struct Given<T> {
    /// All of them, defaults included.
    pub value: T,
    /// Those that were given, as they are written: `--shards`.
    pub names: Vec<String>,
}

impl<T: Args> Given<T> {
    fn names(matches: &ArgMatches) -> Vec<String> {
        let group = T::augment_args(Command::new(""));
        let given =
            group.get_arguments().filter(|argument| matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine));
        given.filter_map(|argument| argument.get_long().map(|name| format!("--{name}"))).collect()
    }
}

impl<T: Args> FromArgMatches for Given<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self { names: Self::names(matches), value: T::from_arg_matches(matches)? })
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        // Reading the values takes them out of the matches, so that the names are looked up first.
        let names = Self::names(matches);
        Ok(Self { names, value: T::from_arg_matches_mut(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.names = Self::names(matches);
        self.value.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Given<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}
