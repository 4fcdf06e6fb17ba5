//! Passwords, of which only hashes are kept.

use std::sync::Arc;
use std::time::Duration;

use argon2::{Argon2, PasswordHash, PasswordHasher as _, PasswordVerifier as _};
use buzzer_model::Name;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::failure::Failure;

/// The shortest password, in characters.
pub(crate) const PASSWORD_CHARS_MIN: usize = 8;
/// The longest, in bytes.
pub(crate) const PASSWORD_BYTES_MAX: usize = 256;
/// The commonest passwords of that length, by what was found in stolen lists, in small letters.
const COMMONEST: &str = "0123456789 0987654321 12341234 12344321 123123123 12345678 123456789 1234567890 123456789a 1234qwer 1q2w3e4r 1q2w3e4r5t \
    1qaz2wsx 1qazxsw2 87654321 987654321 a1234567 a12345678 aa123456 aa12345678 abc12345 abcd1234 abcdefgh admin123 \
    administrator asdfasdf asdfghjk asdfghjkl asdf1234 baseball changeme charlie1 computer football iloveyou iloveyou1 \
    jennifer letmein1 liverpool michelle p@ssw0rd pa55word passw0rd password password1 password12 password123 princess \
    princess1 q1w2e3r4 qwer1234 qwerty12 qwerty123 qwertyui qwertyuiop sunshine superman trustno1 welcome1 zxcvbnm1";
/// How many are hashed at a time. Each takes 19 MiB of memory and some tens of milliseconds of a core, on purpose.
const HASHED_AT_ONCE: usize = 2;
/// How long somebody waits for a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Hashes passwords and checks them, by Argon2id with the parameters that OWASP recommends.
#[derive(Debug)]
pub(crate) struct Passwords {
    turns: Arc<Semaphore>,
    /// The hash of a password that nobody has: to check one for a name that nobody has takes as long as for one that somebody has.
    nobodys: String,
}

impl Passwords {
    /// # Errors
    /// When the system gives no randomness.
    pub(crate) fn new() -> Result<Self, argon2::password_hash::Error> {
        let nobodys = hash(&rand::random::<[u8; 16]>())?;
        Ok(Self { turns: Arc::new(Semaphore::new(HASHED_AT_ONCE)), nobodys })
    }

    /// The hash of a new password of this user's, which must not be too short, nor among those that are guessed first.
    pub(crate) async fn hash(&self, password: String, user: &Name) -> Result<String, Failure> {
        if password.chars().count() < PASSWORD_CHARS_MIN || password.len() > PASSWORD_BYTES_MAX {
            return Err(Failure::refused(format!(
                "A password has at least {PASSWORD_CHARS_MIN} characters, and at most {PASSWORD_BYTES_MAX} bytes."
            )));
        }
        if is_guessed_first(&password, user) {
            return Err(Failure::refused("This password is among the first that others would try. Choose another."));
        }
        self.work(move || hash(password.as_bytes()))
            .await?
            .map_err(|error| Failure::broken(&format!("a password could not be hashed: {error}")))
    }

    /// Whether this is the password with this hash. Without one it is not, but that takes as long.
    pub(crate) async fn is_right(&self, password: String, hash: Option<String>) -> Result<bool, Failure> {
        let (hash, is_somebodys) = hash.map_or_else(|| (self.nobodys.clone(), false), |hash| (hash, true));
        if password.len() > PASSWORD_BYTES_MAX {
            return Ok(false);
        }
        let check = move || PasswordHash::new(&hash).map(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok());
        let is_right =
            self.work(check).await?.map_err(|error| Failure::broken(&format!("the hash of a password cannot be read: {error}")))?;
        Ok(is_right && is_somebodys)
    }

    async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
        let turn = timeout(TURN_TIMEOUT, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| Failure::busy())?.expect("nobody closes it");
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        done.await.map_err(|error| Failure::broken(&error.to_string()))
    }
}

/// Whether it is the user's own name, one letter again and again, or one of the commonest passwords.
fn is_guessed_first(password: &str, user: &Name) -> bool {
    let lower = password.to_lowercase();
    let mut letters = lower.chars();
    let first = letters.next();
    lower == user.as_str() || COMMONEST.split(' ').any(|common| common == lower) || letters.all(|letter| Some(letter) == first)
}

fn hash(password: &[u8]) -> Result<String, argon2::password_hash::Error> {
    Ok(Argon2::default().hash_password(password)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_password_of_somebody_is_right() {
        let passwords = Passwords::new().expect("the system has randomness");
        let ann = &"annabella".parse().expect("a name");
        let hash = passwords.hash("correct horse".to_owned(), ann).await.expect("long enough");
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$") && !hash.contains("horse"), "{hash}");
        assert_ne!(passwords.hash("correct horse".to_owned(), ann).await.expect("long enough"), hash, "each has its own salt");
        assert!(passwords.is_right("correct horse".to_owned(), Some(hash.clone())).await.expect("checked"));
        for (wrong, hash) in [("correct horsf", Some(hash.clone())), ("", Some(hash)), ("correct horse", None), (&"x".repeat(300), None)] {
            assert!(!passwords.is_right(wrong.to_owned(), hash).await.expect("checked"), "{wrong}");
        }
        assert!(passwords.is_right("correct horse".to_owned(), Some("no hash".to_owned())).await.is_err());
        for wrong in ["short".to_owned(), "x".repeat(257)] {
            assert!(passwords.hash(wrong, ann).await.is_err());
        }
        for guessed in COMMONEST.split(' ').chain(["Annabella", "PassWord1", "xxxxxxxxxxxx", "ßßßßßßßß"]) {
            let refused = passwords.hash(guessed.to_owned(), ann).await.expect_err(guessed);
            assert!(refused.message.contains("among the first"), "{guessed}: {}", refused.message);
        }
    }
}
