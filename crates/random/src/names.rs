//! Enumerations whose values have names, as people write them on a command line.

use std::fmt;

/// One of a fixed list, each with a name of its own in small letters and hyphens.
pub trait Named: Copy + PartialEq + fmt::Debug + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// Its name: `StallEarly` is called `stall-early`.
    fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }

    /// The one of that name.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }
}

/// An enumeration whose values have names, so that none can be forgotten in the list of all.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* $visibility:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        $visibility enum $type { $($(#[$doc])* $variant,)* }

        impl $crate::Named for $type {
            const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
}

#[cfg(test)]
mod tests {
    use super::Named;

    crate::named! {
        /// Something to choose.
        enum Choice {
            /// One word.
            Early,
            /// Two words.
            StallEarly,
        }
    }

    #[test]
    fn every_value_is_found_by_its_name() {
        assert_eq!(Choice::StallEarly.name(), "stall-early");
        for choice in Choice::ALL {
            assert_eq!(Choice::named(&choice.name()), Some(*choice));
        }
        assert_eq!(Choice::named("StallEarly"), None);
    }
}
