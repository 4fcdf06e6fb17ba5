//! Posts: what they may say, and what they are called.

use std::fmt;
use std::str::FromStr;

/// The longest post, in characters.
pub const POST_CHARS_MAX: usize = 280;
/// The letters of an identifier.
const ID_CHARS: usize = 24;

/// What a post says: some text, with nothing in it but letters, marks and line ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostText(String);

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongPost {
    /// There is nothing in it.
    #[error("a post says something: write a word or two")]
    Empty,
    /// There is too much in it.
    #[error("a post has at most {POST_CHARS_MAX} characters, and this one has {0}")]
    TooLong(usize),
    /// A character that shows nothing and does something.
    #[error("a post is text, and U+{:04X} is a control character", *.0 as u32)]
    Control(char),
}

impl PostText {
    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PostText {
    type Err = WrongPost;

    /// White space around it does not count, every kind of line end is one, and of several lines in a row that show nothing one is kept.
    fn from_str(text: &str) -> Result<Self, WrongPost> {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let text = merge_blank_lines(text.trim());
        if let Some(control) = text.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t')) {
            return Err(WrongPost::Control(control));
        }
        // Some letters show nothing at all, such as a zero-width space.
        if is_blank(&text) {
            return Err(WrongPost::Empty);
        }
        match text.chars().count() {
            chars if chars > POST_CHARS_MAX => Err(WrongPost::TooLong(chars)),
            _ => Ok(Self(text)),
        }
    }
}

/// The text with one blank line in the place of several: else a few letters would fill a timeline's whole page.
fn merge_blank_lines(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for line in text.split('\n') {
        let follows_blank = kept.last().is_some_and(|last| is_blank(last));
        if !(follows_blank && is_blank(line)) {
            kept.push(line);
        }
    }
    kept.join("\n")
}

fn is_blank(text: &str) -> bool {
    text.chars().all(|letter| letter.is_whitespace() || is_invisible(letter))
}

/// Characters that show nothing. Unicode counts some of them as letters, such as the fillers of Hangul, and some as symbols, such as the empty pattern of Braille.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        // Soft hyphen, joiners, marks of direction, zero-width spaces, operators that are not seen.
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        // The joiner of graphemes, the fillers of Hangul, vowels of Khmer, the marks of Mongolian.
        | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        // The empty pattern of Braille, marks of annotations, what makes nothing but a shorthand or a score.
        | '\u{2800}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}'
        // Selectors of variants, and tags.
        | '\u{fe00}'..='\u{fe0f}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Names a post among its author's: when it was written, and a number drawn for it. Later ones come first in their order as keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostId {
    /// When it was written, in microseconds since 1970.
    pub time_us: u64,
    /// Tells posts of the same microsecond apart, which two servers might accept.
    pub tag: u32,
}

impl PostId {
    /// What timelines are sorted by, the newest first.
    pub(crate) fn newest_first(&self) -> (std::cmp::Reverse<u64>, u32) {
        (std::cmp::Reverse(self.time_us), self.tag)
    }
}

/// As it stands in a key.
impl fmt::Display for PostId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}{:08x}", !self.time_us, self.tag)
    }
}

impl FromStr for PostId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_hexadecimal = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != ID_CHARS || !is_hexadecimal {
            return Err(());
        }
        let (time, tag) = text.split_at(16);
        Ok(Self { time_us: !u64::from_str_radix(time, 16).map_err(drop)?, tag: u32::from_str_radix(tag, 16).map_err(drop)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_post_is_text_of_some_length() {
        let said = |text: &str| text.parse::<PostText>().map(|text| text.as_str().to_owned());
        assert_eq!(said("  hello\r\nyou \n"), Ok("hello\nyou".to_owned()));
        assert_eq!(said("<script>alert(1)</script>"), Ok("<script>alert(1)</script>".to_owned()));
        assert_eq!(said(" \n "), Err(WrongPost::Empty));
        assert_eq!(said("\u{200b}\u{202e}"), Err(WrongPost::Empty));
        for invisible in
            ["\u{3164}", "\u{ffa0}", "\u{115f}", "\u{2800}", "\u{180e}", "\u{fe0f}", "\u{e0101}", "\u{34f}", "\u{3164} \u{2800}\n\u{34f}"]
        {
            assert_eq!(said(invisible), Err(WrongPost::Empty), "{invisible:?}");
            assert_eq!(said(&format!("{invisible}x")), Ok(format!("{invisible}x")), "what is seen makes it a post");
        }
        assert_eq!(said("a\n\n\n\r\n\nb"), Ok("a\n\nb".to_owned()));
        assert_eq!(said("a\n \n\u{2800}\n\t\nb\nc"), Ok("a\n \nb\nc".to_owned()));
        assert_eq!(said(&format!("a{}b", "\n".repeat(500))), Ok("a\n\nb".to_owned()), "what is left out does not count");
        assert_eq!(said("a\u{7}b"), Err(WrongPost::Control('\u{7}')));
        assert_eq!(said("🦜"), Ok("🦜".to_owned()));
        assert_eq!(said(&"ש".repeat(POST_CHARS_MAX)), Ok("ש".repeat(POST_CHARS_MAX)));
        let long = said(&"x".repeat(281)).expect_err("too long");
        assert_eq!(long.to_string(), "a post has at most 280 characters, and this one has 281");
    }

    proptest! {
        #[test]
        fn later_posts_have_earlier_keys(one: u64, other: u64, tag: u32) {
            let [one, other] = [one, other].map(|time_us| PostId { time_us, tag });
            prop_assert_eq!(one.time_us.cmp(&other.time_us), other.to_string().cmp(&one.to_string()));
            prop_assert_eq!(one.to_string().parse(), Ok(one));
        }

        #[test]
        fn what_is_no_identifier_is_refused(text in ".{0,30}") {
            if let Ok(id) = text.parse::<PostId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
