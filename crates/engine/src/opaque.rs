//! What the two ends of one engine hand to each other through others' hands.

use std::any::Any;
use std::fmt;

macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub struct $name(Box<dyn Any + Send + Sync>);

        impl $name {
            /// Wraps what only its engine understands.
            #[must_use]
            pub fn new(content: impl Any + Send + Sync) -> Self {
                Self(Box::new(content))
            }

            /// What it holds, if that is a `T`.
            #[must_use]
            pub fn get<T: Any>(&self) -> Option<&T> {
                self.0.downcast_ref()
            }

            /// Takes out what it holds.
            ///
            /// # Errors
            /// Itself, when it holds no `T`: it came from another engine.
            pub fn take<T: Any>(self) -> Result<T, Self> {
                self.0.downcast().map(|content| *content).map_err(Self)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

opaque! {
    /// What an engine knows of a read beside its values, and wants back with the commit.
    Evidence
}

opaque! {
    /// What an engine's pool and its session say to each other.
    Private
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_type_takes_it_out() {
        let evidence = Evidence::new(vec![1_u8, 2]);
        assert_eq!(evidence.get::<String>(), None);
        let evidence = evidence.take::<String>().expect_err("it holds no string");
        assert_eq!(evidence.take::<Vec<u8>>().expect("it holds bytes"), [1, 2]);
    }
}
