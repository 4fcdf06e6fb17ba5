//! One page: its headings and its links.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A page, parsed.
pub struct Page {
    /// What `#…` may name: one anchor a heading.
    pub anchors: BTreeSet<String>,
    /// Its links and pictures, in order.
    pub links: Vec<Link>,
}

/// One link or picture.
pub struct Link {
    /// Where it leads, as written.
    pub target: String,
    /// The line it stands on, counted from 1.
    pub line: usize,
}

impl Page {
    /// Parses a page.
    pub fn parse(text: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
        let (mut anchors, mut links, mut seen) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        let mut heading: Option<String> = None;
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            match (event, &mut heading) {
                (Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }), _) => {
                    let line = text[..range.start].matches('\n').count() + 1;
                    links.push(Link { target: dest_url.to_string(), line });
                }
                (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
                (Event::Text(text) | Event::Code(text), Some(title)) => title.push_str(&text),
                (Event::SoftBreak, Some(title)) => title.push(' '),
                (Event::End(TagEnd::Heading(_)), Some(title)) => {
                    anchors.insert(unique(&mut seen, slug(title)));
                    heading = None;
                }
                _ => {}
            }
        }
        Self { anchors, links }
    }
}

/// A heading's anchor, made the way that forges make it: lower case, spaces to hyphens, no punctuation.
fn slug(title: &str) -> String {
    let kept = title.trim().chars().filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_'));
    kept.map(|character| if character == ' ' { '-' } else { character }).flat_map(char::to_lowercase).collect()
}

fn unique(seen: &mut BTreeMap<String, usize>, slug: String) -> String {
    let count = seen.entry(slug.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_a_forge_makes() {
        let page = Page::parse("# What `bezant` is, and isn't\n\n## Reads\n\n## Reads\n\n```\n# no heading\n```\n");
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["reads", "reads-1", "what-bezant-is-and-isnt"]);
    }

    #[test]
    fn links_know_their_lines() {
        let page = Page::parse("# A\n\nSee [b](b.md#c)\nand [out](https://example.org/d.md), not `[code](e.md)`.\n");
        let links: Vec<(&str, usize)> = page.links.iter().map(|link| (link.target.as_str(), link.line)).collect();
        assert_eq!(links, [("b.md#c", 3), ("https://example.org/d.md", 4)]);
    }
}
