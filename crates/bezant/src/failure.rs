//! What a command says when it cannot do what it was asked, and the exit code it leaves with.

use std::fmt::{self, Display};
use std::process::ExitCode;

use client::{Advice, ConnectError, Refusal};
use config::ConfigError;
use serde_json::{Value, json};

use crate::output::tame;

/// Of what failed so much is shown at most: it may quote what was asked, however long that is.
const LETTERS_MAX: usize = 4_096;
const LINES_MAX: usize = 64;
const START_IT: &str = "see who is up with `bezant status`; start a cluster with `bezant up DIR` or `bezant dev`";

/// How a replica refuses whose key is no member's.
const NO_MEMBER: &str = "is not a member of cluster";

/// How a command that did not fail ends. `grep` made the convention: 1 says that nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Exit code 0.
    Well,
    /// Exit code 1: done, and the answer is no.
    Negative,
}

impl From<Done> for ExitCode {
    fn from(done: Done) -> Self {
        match done {
            Done::Well => Self::SUCCESS,
            Done::Negative => Self::from(1),
        }
    }
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What was asked, or a file, must change. Exit code 2, as for a command line that does not parse.
    Wrong,
    /// It could not be done, for the cluster's or this computer's sake. Exit code 3.
    Failed,
    /// The caller has to look what there is before asking again: it may have taken place, or has. Exit code 4.
    Unclear,
}

impl Kind {
    fn exit_code(self) -> u8 {
        match self {
            Self::Wrong => 2,
            Self::Failed => 3,
            Self::Unclear => 4,
        }
    }
}

/// Why a command failed: what, where, and what to do next.
#[derive(Clone, Debug)]
pub struct Failure {
    kind: Kind,
    what: String,
    place: Option<String>,
    help: Option<String>,
    /// What the client's interface calls it, and what it advises.
    named: Option<(&'static str, Advice)>,
}

impl Failure {
    /// What was asked, or configured, is wrong. Exit code 2.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self::new(Kind::Wrong, what)
    }

    /// It could not be done. Exit code 3.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Kind::Failed, what)
    }

    /// It may have taken place, or has. Exit code 4.
    pub fn to_be_looked_at(what: impl Into<String>) -> Self {
        Self::new(Kind::Unclear, what)
    }

    /// Whether it may have taken place, or has.
    pub fn is_to_be_looked_at(&self) -> bool {
        self.kind == Kind::Unclear
    }

    fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), place: None, help: None, named: None }
    }

    /// Says where: a file, a line, an address.
    pub fn at(mut self, place: impl Display) -> Self {
        self.place = Some(place.to_string());
        self
    }

    /// Says in what larger place it is that it named.
    pub fn within(self, whole: impl Display) -> Self {
        let place = self.place.as_ref().map_or_else(|| whole.to_string(), |part| format!("{whole}, {part}"));
        self.at(place)
    }

    /// Says what to do next.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// A last word about several failures of which this is the first: it ends the program as this one would.
    pub fn summed_up(self, what: impl Into<String>) -> Self {
        Self::new(self.kind, what)
    }

    /// The exit code to leave with.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.exit_code())
    }

    /// The same for programs: what the client's interface calls it, and advises, stands there where the client failed.
    pub fn to_json(&self) -> Value {
        let (label, advice) = self.named.unzip();
        let (advice, after_ms) = match advice {
            Some(Advice::Retry) => (Some("retry"), None),
            Some(Advice::RetryAfter { ms }) => (Some("retry_after"), Some(ms)),
            Some(Advice::GiveUp) => (Some("give_up"), None),
            Some(Advice::FixInput) => (Some("fix_input"), None),
            None => (None, None),
        };
        let (what, help) = (tame_lines(&self.what), self.help.as_deref().map(tame_lines));
        let place = self.place.as_ref().map(|place| tame(place, LETTERS_MAX));
        json!({"error": {"what": what, "at": place, "help": help, "exit_code": self.kind.exit_code(),
                         "label": label, "advice": advice, "after_ms": after_ms}})
    }
}

/// Text of several lines, of which some may be what somebody else wrote.
fn tame_lines(text: &str) -> String {
    let lines = text.split('\n').take(LINES_MAX).map(|line| tame(line, LETTERS_MAX));
    lines.collect::<Vec<_>>().join("\n")
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "error: {}", tame_lines(&self.what))?;
        if let Some(place) = &self.place {
            write!(formatter, "\n  at: {}", tame(place, LETTERS_MAX))?;
        }
        if let Some(help) = &self.help {
            write!(formatter, "\n  help: {}", tame_lines(help))?;
        }
        Ok(())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::wrong(error.what.clone()).at(error.place()).help(error.help)
    }
}

/// Adds what was being done, and where, to an error of the operating system.
pub trait Attempt<T> {
    /// Turns the error into a [`Failure`] that says `what` could not be done and `place`.
    fn attempt(self, what: &str, place: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Attempt<T> for Result<T, E> {
    fn attempt(self, what: &str, place: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::failed(format!("cannot {what}: {error}")).at(place))
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        Self { named: Some((error.label(), error.advice())), ..Self::of(&error) }
    }
}

impl Failure {
    /// In words.
    fn of(error: &client::Error) -> Self {
        match error.advice() {
            Advice::FixInput if matches!(error, client::Error::Refused(Refusal::AnswerTooLarge)) => Self::wrong(error.to_string())
                .help(
                "ask for less at once (keys of a range that were deleted within the last second count, too); where the engine reads the past, \
                 `bezant scan --all` reads a range of any size, and --as-of '0s ago' passes over what is deleted",
            ),
            Advice::FixInput => Self::wrong(error.to_string()),
            Advice::Retry => Self::failed(error.to_string()).help("try again: it was tried for as long as client.toml allows"),
            Advice::RetryAfter { .. } if matches!(error, client::Error::Refused(Refusal::Overloaded { .. })) => {
                Self::failed(error.to_string())
                    .help("it was tried for as long as client.toml allows; ask for less at once, or add machines")
            }
            Advice::RetryAfter { .. } => {
                Self::failed(error.to_string()).help("what tries again by itself does so within `retry_timeout_ms` of client.toml")
            }
            // Whoever asks for the same again hears the same.
            Advice::GiveUp
                if matches!(
                    error,
                    client::Error::NotPermitted(_)
                        | client::Error::Refused(
                            Refusal::NotPermitted | Refusal::ClientLimit { .. } | Refusal::Liar | Refusal::WrongShard
                        )
                ) =>
            {
                Self::wrong(error.to_string())
            }
            Advice::GiveUp if matches!(error, client::Error::OutcomeUnknown { .. }) => Self::to_be_looked_at(error.to_string()),
            Advice::GiveUp => Self::failed(error.to_string()),
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match &error {
            ConnectError::Identity(_) | ConnectError::Member(_) => {
                Self::wrong(error.to_string()).help("take the client's folder as `bezant init` made it")
            }
            ConnectError::NotTheCluster { .. } => Self::wrong(error.to_string())
                .help("another cluster runs on these ports: stop it, or take other addresses in cluster.toml and node.toml"),
            ConnectError::TooFew { detail, .. } => match refuses_member(detail) {
                Some(one) => Self::wrong(format!("every replica that answers refuses this client's key; {one}")).help(
                    "it was taken out, and only operators can bring it back; or its key was changed: bezant key use NEW-KEY FOLDER --rotate",
                ),
                None => Self::failed(error.to_string()).help(START_IT),
            },
            _ => Self::failed(error.to_string()).help(START_IT),
        }
    }
}

/// What the first replica said, where each that has said why it does not serve a client, and there are several, knows nobody by its key.
fn refuses_member(detail: &str) -> Option<&str> {
    let refused: Vec<&str> = detail.lines().filter(|line| line.contains(" refuses: ")).collect();
    let is_agreed = refused.len() > 1 && refused.iter().all(|line| line.contains(NO_MEMBER));
    refused.first().filter(|_| is_agreed).map(|line| line.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_taken_place_is_not_said_to_have_failed() {
        let unknown = client::Error::OutcomeUnknown { waited_ms: 5, detail: String::new() };
        let limit = client::Error::Refused(Refusal::ClientLimit { name: "keys", after_ms: 0 });
        for (error, label, advice, code) in [
            (unknown, "outcome_unknown", "give_up", 4),
            (client::Error::Conflict, "conflict", "retry", 3),
            (client::Error::Invalid("it is too long".to_owned()), "invalid", "fix_input", 2),
            (limit, "refused", "give_up", 2),
        ] {
            let failure = Failure::from(error);
            let json = failure.to_json();
            let found = &json["error"];
            assert_eq!((&found["label"], &found["advice"], &found["exit_code"]), (&label.into(), &advice.into(), &code.into()));
            assert_eq!(failure.exit_code(), ExitCode::from(code));
        }
        assert_eq!(Failure::wrong("no").to_json()["error"]["label"], Value::Null);
        let hostile = Failure::wrong("a\u{202e}b\u{9b}c".repeat(LETTERS_MAX)).at("\u{7f}").help("\u{202e}").to_json().to_string();
        assert!(!hostile.contains(['\u{202e}', '\u{9b}', '\u{7f}']) && hostile.len() < 20 * LETTERS_MAX, "{hostile}");
    }
}
