//! One page: its headings, its links, its HTML.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

/// A page, parsed.
pub struct Page {
    /// Its first heading.
    pub title: String,
    /// What `#…` may name: one anchor a heading.
    pub anchors: BTreeSet<String>,
    /// Its links and pictures, in order.
    pub links: Vec<Link>,
    /// Its body; links to pages lead to their HTML.
    pub html: String,
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
        let mut events = Vec::new();
        let mut links = Vec::new();
        for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
            if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = &event {
                let line = text[..range.start].matches('\n').count() + 1;
                links.push(Link { target: dest_url.to_string(), line });
            }
            events.push(to_html_link(event));
        }
        let headings = name_headings(&mut events);
        let title = headings.first().map_or_else(|| "Bezant".to_owned(), |(_, title)| title.clone());
        let mut body = String::new();
        html::push_html(&mut body, events.into_iter());
        Self { title, anchors: headings.into_iter().map(|(anchor, _)| anchor).collect(), links, html: body }
    }

    /// The whole HTML page, with the table of contents beside the body.
    pub fn render(&self, contents: &str) -> String {
        let title = self.title.replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{title} · Bezant</title>\n<style>{STYLE}</style>\n<nav>{contents}</nav>\n<main>{}</main>\n</html>\n",
            self.html
        )
    }
}

const STYLE: &str = "
body { margin: 0; display: flex; font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff }
nav { flex: 0 0 15rem; padding: 1rem; background: #f6f3ea; min-height: 100vh }
nav ul { padding-left: 1rem }
main { flex: 1; min-width: 0; max-width: 48rem; padding: 1rem 2rem }
pre { overflow-x: auto; padding: .75rem; background: #f6f6f6 }
code { font: 14px/1.4 ui-monospace, monospace }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border: 1px solid #ccc; padding: .25rem .5rem; text-align: left; vertical-align: top }
@media (max-width: 50rem) { body { display: block } nav { min-height: 0 } }
";

/// Gives each heading its anchor; returns them with the headings' texts, in order.
fn name_headings(events: &mut [Event<'_>]) -> Vec<(String, String)> {
    let mut headings = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut open: Option<(usize, String)> = None;
    for at in 0..events.len() {
        match (&events[at], &mut open) {
            (Event::Start(Tag::Heading { .. }), _) => open = Some((at, String::new())),
            (Event::Text(text) | Event::Code(text), Some((_, title))) => title.push_str(text),
            (Event::SoftBreak, Some((_, title))) => title.push(' '),
            (Event::End(TagEnd::Heading(_)), Some(_)) => {
                let Some((start, title)) = open.take() else { continue };
                let anchor = unique(&mut seen, slug(&title));
                if let Event::Start(Tag::Heading { id, .. }) = &mut events[start] {
                    *id = Some(CowStr::from(anchor.clone()));
                }
                headings.push((anchor, title));
            }
            _ => {}
        }
    }
    headings
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

/// A link to `x.md` leads to `x.html` in the book.
fn to_html_link(event: Event<'_>) -> Event<'_> {
    let Event::Start(Tag::Link { link_type, dest_url, title, id }) = event else { return event };
    let dest_url = match dest_url.split_once(".md") {
        Some((stem, rest)) if !dest_url.contains("://") && (rest.is_empty() || rest.starts_with('#')) => {
            format!("{stem}.html{rest}").into()
        }
        _ => dest_url,
    };
    Event::Start(Tag::Link { link_type, dest_url, title, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_a_forge_makes() {
        let page = Page::parse("# What `bezant` is, and isn't\n\n## Reads\n\n## Reads\n\n```\n# no heading\n```\n");
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["reads", "reads-1", "what-bezant-is-and-isnt"]);
        assert_eq!(page.title, "What bezant is, and isn't");
    }

    #[test]
    fn links_know_their_lines_and_lead_to_html() {
        let page = Page::parse("# A\n\nSee [b](b.md#c)\nand [out](https://example.org/d.md), not `[code](e.md)`.\n");
        let links: Vec<(&str, usize)> = page.links.iter().map(|link| (link.target.as_str(), link.line)).collect();
        assert_eq!(links, [("b.md#c", 3), ("https://example.org/d.md", 4)]);
        assert!(page.html.contains("href=\"b.html#c\""), "{}", page.html);
        assert!(page.html.contains("href=\"https://example.org/d.md\""), "{}", page.html);
    }
}
