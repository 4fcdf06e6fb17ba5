//! What goes wrong, in words for whoever asked.

use axum::http::{Method, StatusCode};
use bezant_client::{Advice, Error};

/// What is said of a change that nobody knows the end of.
const OUTCOME_UNKNOWN: &str = "What you asked for may have been done, or may still be done: look before you do it again.";

/// Why there is no such page, or nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) title: &'static str,
    pub(crate) message: String,
}

impl Failure {
    fn new(status: StatusCode, title: &'static str, message: impl Into<String>) -> Self {
        Self { status, title, message: message.into() }
    }

    /// What was asked cannot be done, and the message says why.
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "That does not work", message)
    }

    /// There is no such page or user.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "There is nothing here", message)
    }

    /// Name and password do not fit.
    pub(crate) fn wrong_password() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Not signed in", "There is no user of that name with that password.")
    }

    /// Whoever asks is not signed in, or no longer.
    pub(crate) fn signed_out() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "You are signed out", "You are signed out, so nothing was done. Sign in, and try again.")
    }

    /// Whether it is that nobody is signed in.
    pub(crate) fn is_signed_out(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    /// The browser has forgotten its session, and the cluster may not have.
    pub(crate) fn only_forgotten(self) -> Self {
        let message = "This browser is signed out. The session could not be ended elsewhere, which matters only if somebody has copied it: in that case sign in again \
                       later, and sign out everywhere under Settings.";
        Self { message: message.to_owned(), ..self }
    }

    /// What was written could not be posted, as nobody is signed in.
    pub(crate) fn signed_out_in_writing() -> Self {
        let message = "You are signed out, so nothing was posted. What you wrote is kept here: sign in, and post it then.";
        Self { message: message.to_owned(), ..Self::signed_out() }
    }

    /// It was asked too often.
    pub(crate) fn too_often(what: &str, seconds: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "Slow down", format!("Too many {what} in a short time. Try again in {seconds} seconds."))
    }

    /// A form that is not ours, or is old.
    pub(crate) fn foreign() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "This form is not valid",
            "Nothing was done: it comes from another site, or from before you signed in. Go back, reload the page, and try again.",
        )
    }

    /// A request that cannot be read.
    pub(crate) fn unreadable(status: StatusCode) -> Self {
        Self::new(status, "That cannot be read", "The browser sent what is not one of our forms, or is too long.")
    }

    /// There is too much to do.
    pub(crate) fn busy() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Too busy", "Nothing was done, as there is too much to do. Try again in a moment.")
    }

    /// There was no answer in time. What asks for a page has changed nothing; of anything else, nobody knows.
    pub(crate) fn late(method: &Method) -> Self {
        if matches!(*method, Method::GET | Method::HEAD) {
            return Self::busy();
        }
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "No answer in time", format!("It took too long. {OUTCOME_UNKNOWN}"))
    }

    /// The account was made, and then the session could not be begun, as this failure says.
    pub(crate) fn only_made(self) -> Self {
        Self { message: "Your account is made, but you could not be signed in. Sign in with its name and password.".to_owned(), ..self }
    }

    /// Something is wrong here, which goes to the log and not to the browser.
    pub(crate) fn broken(what: &str) -> Self {
        eprintln!("error: {what}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Something is broken", "Nothing was done. What went wrong stands in the server's log.")
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let unavailable = |message: &str| Self::new(StatusCode::SERVICE_UNAVAILABLE, "The network does not answer", message);
        match error {
            Error::Conflict | Error::TooOld => Self::busy(),
            Error::Closed => unavailable("Nothing was done: the server is stopping. Try again in a moment."),
            Error::Unavailable { .. } => {
                eprintln!("error: {error}");
                unavailable("Nothing was done: too few of the replicas that keep the data answer. Try again later.")
            }
            Error::OutcomeUnknown { .. } => {
                eprintln!("error: {error}");
                unavailable(&format!("Too few of the replicas that keep the data answered in time. {OUTCOME_UNKNOWN}"))
            }
            other if matches!(other.advice(), Advice::RetryAfter { .. }) => Self::busy(),
            other => Self::broken(&other.to_string()),
        }
    }
}
