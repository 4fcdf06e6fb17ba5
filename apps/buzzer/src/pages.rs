//! The pages. Whatever a user wrote is text: `maud` escapes it, in contents and in attributes alike.

use buzzer_model::{FOLLOWING_MAX, LIST_MAX, NAME_CHARS_MAX, Name, POST_CHARS_MAX, PostId, Profile, Shown, Timeline};
use maud::{DOCTYPE, Markup, html};
use time::Month;
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::passwords::{PASSWORD_BYTES_MAX, PASSWORD_CHARS_MIN};
use crate::sessions::Ticket;

/// How many colours the discs have that stand for users.
const COLOURS: u32 = 8;

/// What stands in the two forms for those who are not signed in, and what was wrong with it.
#[derive(Default)]
pub(crate) struct Welcome<'a> {
    pub(crate) name: &'a str,
    pub(crate) wrong: Option<&'a Failure>,
    pub(crate) new_name: &'a str,
    pub(crate) wrong_new: Option<&'a Failure>,
    /// What somebody has written who is not signed in any more. It comes back with the form to sign in, which then stands alone.
    pub(crate) draft: &'a str,
}

/// What stands where a post is written, and what was wrong with it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Draft<'a> {
    pub(crate) text: &'a str,
    pub(crate) wrong: Option<&'a Failure>,
}

/// Everything around a page's contents.
fn page(title: &str, viewer: Option<&Ticket>, contents: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Buzzer" }
                link rel="icon" type="image/svg+xml" href="/favicon.svg";
                link rel="stylesheet" href="/style.css";
                script src="/buzzer.js" defer {}
            }
            body {
                a.skip href="#contents" { "Skip to the contents" }
                header.bar {
                    div.bar-row {
                        a.brand href="/" { img src="/favicon.svg" alt="" width="28" height="28"; "Buzzer" }
                        @if let Some(viewer) = viewer {
                            form.find action="/find" method="get" role="search" {
                                label.hidden for="find" { "Find a user" }
                                input #find name="name" type="search" placeholder="Find a user" required autocapitalize="none" autocomplete="off" maxlength=(NAME_CHARS_MAX + 1);
                            }
                            nav aria-label="You" {
                                a.self href={ "/u/" (viewer.name) } { (disc(&viewer.name)) span.self-name { "@" (viewer.name) } }
                                form action="/sign-out" method="post" {
                                    input type="hidden" name="token" value=(viewer.form_token());
                                    button.quiet type="submit" { "Sign out" }
                                }
                            }
                        }
                    }
                }
                main #contents { (contents) }
                footer { "Kept by replicas that need not trust one another." }
            }
        }
    }
}

pub(crate) fn welcome(filled: &Welcome<'_>) -> Markup {
    if !filled.draft.is_empty() {
        return page("Sign in", None, &door("Sign in", "/sign-in", filled.name, filled.wrong, "current-password", filled.draft));
    }
    let contents = html! {
        section.hero {
            h1 { "What people say, in order" }
            p { "Follow people, and see what they post at once. Who follows whom and what was posted is always of one moment: nobody reads an answer before the question." }
        }
        div.doors {
            (door("Sign in", "/sign-in", filled.name, filled.wrong, "current-password", ""))
            (door("Create an account", "/sign-up", filled.new_name, filled.wrong_new, "new-password", ""))
        }
    };
    page("Welcome", None, &contents)
}

/// A form with a name and a password, and what is to be kept meanwhile.
fn door(title: &str, action: &str, name: &str, wrong: Option<&Failure>, kind: &str, draft: &str) -> Markup {
    let is_new = kind == "new-password";
    let id = |part: &str| format!("{part}-{kind}");
    html! {
        section.card aria-labelledby=(id("title")) {
            h2 id=(id("title")) { (title) }
            (complaint(wrong))
            form action=(action) method="post" {
                label for=(id("name")) { "Name" }
                input id=(id("name")) name="name" value=(name) required autocomplete="username" autocapitalize="none" spellcheck="false" maxlength=(NAME_CHARS_MAX + 1);
                @if is_new { p.hint { "Up to " (NAME_CHARS_MAX) " letters from a to z, digits and _" } }
                label for=(id("password")) { "Password" }
                input id=(id("password")) name="password" type="password" required autocomplete=(kind) minlength=[is_new.then_some(PASSWORD_CHARS_MIN)] maxlength=(PASSWORD_BYTES_MAX);
                @if is_new { p.hint { "At least " (PASSWORD_CHARS_MIN) " characters" } }
                @if !draft.is_empty() {
                    label for="draft" { "What you wrote" }
                    textarea #draft name="draft" rows="3" dir="auto" { "\n" (draft) }
                }
                button type="submit" { (title) }
            }
        }
    }
}

fn complaint(wrong: Option<&Failure>) -> Markup {
    html! { @if let Some(wrong) = wrong { p.wrong role="alert" { (wrong.message) } } }
}

/// The timeline of whoever is signed in; with what was written and not posted, and why.
pub(crate) fn home(viewer: &Ticket, shown: &Timeline, is_first: bool, draft: Draft<'_>) -> Markup {
    let contents = html! {
        h1.hidden { "Your timeline" }
        @if is_first { (composer(viewer, draft)) }
        p.hidden #news role="status" {}
        section #timeline aria-label="Posts" data-live[is_first] { (timeline(viewer, shown)) }
    };
    page("Your timeline", Some(viewer), &contents)
}

/// What was written and not posted, and why, where there is no timeline.
pub(crate) fn write_again(viewer: &Ticket, draft: Draft<'_>) -> Markup {
    let contents = html! {
        h1.hidden { "Your post" }
        (composer(viewer, draft))
        p { a href="/" { "To your timeline" } }
    };
    page("Your post", Some(viewer), &contents)
}

fn composer(viewer: &Ticket, draft: Draft<'_>) -> Markup {
    html! {
        section.card.composer aria-label="Write a post" {
            (disc(&viewer.name))
            form action="/post" method="post" {
                (complaint(draft.wrong))
                input type="hidden" name="token" value=(viewer.form_token());
                label.hidden for="text" { "What is going on?" }
                // A new line first, as browsers leave out the first one in a text area.
                textarea #text name="text" rows="3" required dir="auto" placeholder="What is going on?" data-most=(POST_CHARS_MAX) aria-describedby="left" { "\n" (draft.text) }
                div.composer-row {
                    span #left.hint { "Up to " (POST_CHARS_MAX) " characters" }
                    button type="submit" { "Post" }
                }
            }
        }
    }
}

/// The posts of a timeline.
pub(crate) fn timeline(viewer: &Ticket, shown: &Timeline) -> Markup {
    html! {
        @if shown.posts.is_empty() {
            div.card.empty {
                h2 { "Nothing here yet" }
                @if shown.following.is_empty() {
                    p { "You follow nobody. Find somebody by their name at the top, or write the first post." }
                } @else {
                    p { "Nobody of those you follow has written anything yet, or nothing older." }
                }
            }
        }
        (posts(&shown.posts, Some(viewer), None))
        (older(shown.has_more, "/", shown.posts.last()))
    }
}

pub(crate) fn profile(viewer: Option<&Ticket>, user: &Name, profile: &Profile, is_first: bool) -> Markup {
    let is_own = viewer.is_some_and(|viewer| viewer.name == *user);
    let followers = if profile.followers > LIST_MAX { format!("{LIST_MAX}+") } else { profile.followers.to_string() };
    let contents = html! {
        section.card.person {
            (disc(user))
            div.person-words {
                h1 { "@" (user) }
                p.hint { "Here since " (day(profile.joined)) }
                p.counts {
                    a href={ "/u/" (user) "/followers" } { strong { (followers) } " " @if profile.followers == 1 { "follower" } @else { "followers" } }
                    a href={ "/u/" (user) "/following" } { strong { (profile.following) } " following" }
                }
            }
            @match viewer {
                Some(viewer) if !is_own => (follow_button(viewer, user, profile.is_followed)),
                Some(_) => a.button.quiet href="/settings" { "Settings" },
                None => a.button href="/" { "Sign in to follow" },
            }
        }
        @if profile.posts.is_empty() {
            div.card.empty { p { @if is_first { "@" (user) " has not written anything yet." } @else { "There is nothing older." } } }
        }
        section aria-label={ "Posts of " (user) } { (posts(&profile.posts, viewer, Some(user))) }
        (older(profile.has_more, &format!("/u/{user}"), profile.posts.last()))
    };
    page(&format!("@{user}"), viewer, &contents)
}

fn follow_button(viewer: &Ticket, user: &Name, is_followed: bool) -> Markup {
    let (action, word) = if is_followed { ("/unfollow", "Unfollow") } else { ("/follow", "Follow") };
    html! {
        form action=(action) method="post" {
            input type="hidden" name="token" value=(viewer.form_token());
            input type="hidden" name="user" value=(user);
            button.quiet[is_followed] type="submit" { (word) }
        }
    }
}

/// Those who follow a user (`followers`), or whom they follow (`following`).
pub(crate) fn list(viewer: Option<&Ticket>, user: &Name, which: &str, names: &[Name]) -> Markup {
    let title = if which == "followers" { format!("Who follows @{user}") } else { format!("Whom @{user} follows") };
    let contents = html! {
        section.card {
            h1 { (title) }
            @if which == "following" { p.hint { "Everybody may follow " (FOLLOWING_MAX) " others." } }
            @if names.is_empty() { p { "Nobody." } }
            ul.people {
                @for name in names { li { a href={ "/u/" (name) } { (disc(name)) "@" (name) } } }
            }
            @if let Some(last) = names.last().filter(|_| names.len() >= LIST_MAX) {
                p { a.button href={ "/u/" (user) "/" (which) "?after=" (last) } { "More" } }
            }
            p { a href={ "/u/" (user) } { "Back to @" (user) } }
        }
    };
    page(&title, viewer, &contents)
}

/// Where a user changes their password; with what was wrong with it.
pub(crate) fn settings(viewer: &Ticket, wrong: Option<&Failure>) -> Markup {
    let contents = html! {
        section.card aria-labelledby="title-password" {
            h1 #title-password { "Change your password" }
            (complaint(wrong))
            p { "Every other browser in which you are signed in is then signed out." }
            form action="/password" method="post" {
                input type="hidden" name="token" value=(viewer.form_token());
                // Those who keep passwords for people learn by it whose this is.
                input.hidden type="text" name="name" value=(viewer.name) autocomplete="username" readonly tabindex="-1" aria-hidden="true";
                label for="old" { "Old password" }
                input #old name="old" type="password" required autocomplete="current-password" maxlength=(PASSWORD_BYTES_MAX);
                label for="new" { "New password" }
                input #new name="new" type="password" required autocomplete="new-password" minlength=(PASSWORD_CHARS_MIN) maxlength=(PASSWORD_BYTES_MAX);
                p.hint { "At least " (PASSWORD_CHARS_MIN) " characters" }
                button type="submit" { "Change the password" }
            }
        }
        section.card aria-labelledby="title-everywhere" {
            h2 #title-everywhere { "Sign out everywhere" }
            p { "In every browser, and in this one too." }
            form action="/sign-out-everywhere" method="post" {
                input type="hidden" name="token" value=(viewer.form_token());
                button.quiet type="submit" { "Sign out everywhere" }
            }
        }
    };
    page("Settings", Some(viewer), &contents)
}

pub(crate) fn password_changed(viewer: &Ticket) -> Markup {
    let contents = html! {
        section.card.empty {
            h1 { "Your password is changed" }
            p { "Every other browser in which you were signed in is signed out." }
            p { a.button href="/" { "To your timeline" } }
        }
    };
    page("Your password is changed", Some(viewer), &contents)
}

/// What failed, for whoever asked.
pub(crate) fn failure(failure: &Failure, asking: Option<&Ticket>) -> Markup {
    let contents = html! {
        section.card.empty {
            h1 { (failure.title) }
            p { (failure.message) }
            p { a.button href="/" { "To the first page" } }
        }
    };
    page(failure.title, asking, &contents)
}

/// Posts, on a profile or elsewhere. The viewer may delete their own.
fn posts(shown: &[Shown], viewer: Option<&Ticket>, profile: Option<&Name>) -> Markup {
    html! {
        ol.posts {
            @for post in shown {
                li.card.post id={ (post.author) "-" (post.id) } {
                    (disc(&post.author))
                    article {
                        p.post-head {
                            a href={ "/u/" (post.author) } { "@" (post.author) }
                            (when(post.id))
                        }
                        // Its direction is its own, and ends with it.
                        p.post-text dir="auto" { (post.text) }
                        @if let Some(viewer) = viewer.filter(|viewer| viewer.name == post.author) {
                            // Two presses, so that none is deleted by mistake, and without a script.
                            details.delete {
                                summary.hint { "Delete" }
                                form action="/delete" method="post" {
                                    input type="hidden" name="token" value=(viewer.form_token());
                                    input type="hidden" name="post" value=(post.id);
                                    @if let Some(user) = profile { input type="hidden" name="user" value=(user); }
                                    button.quiet type="submit" { "Delete this post for good" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn older(has_more: bool, place: &str, last: Option<&Shown>) -> Markup {
    html! { @if let Some(last) = last.filter(|_| has_more) { p.older { a.button href={ (place) "?before=" (last.id) } { "Older posts" } } } }
}

/// A coloured disc with the first letter, which says nothing that the name beside it does not.
fn disc(user: &Name) -> Markup {
    let colour = user.as_str().bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % COLOURS;
    html! { span class={ "disc colour-" (colour) } aria-hidden="true" { (user.as_str()[..1].to_uppercase()) } }
}

/// When a post was written. The script writes it as people do where the browser is.
fn when(id: PostId) -> Markup {
    match i64::try_from(id.time_us / 1_000_000).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok()) {
        None => html! { span.hint { "at an unknown time" } },
        Some(time) => {
            let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
            let (hour, minute, second) = time.to_hms();
            html! {
                time.hint datetime=(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")) {
                    (day) " " (short(time.month())) " " (year) ", " (format!("{hour:02}:{minute:02}")) " UTC"
                }
            }
        }
    }
}

fn day(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.map_or_else(|| "an unknown day".to_owned(), |time| format!("{} {} {}", time.day(), time.month(), time.year()))
}

fn short(month: Month) -> String {
    month.to_string()[..3].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn whatever_was_written_is_text() {
        let text = "<script>alert('x')</script> \" onmouseover=\"alert(1)\" &lt; \u{202e}backwards".to_owned();
        let shown = Shown { author: name("ann"), id: PostId { time_us: 1_764_000_000_000_000, tag: 1 }, text };
        let timeline = Timeline { posts: vec![shown], following: Vec::new(), has_more: false };
        let viewer = Ticket::draw(name("bob"));
        let failure = Failure::refused("</p><img src=x onerror=alert(1)>");
        let draft = Draft { text: "</textarea><script>alert(2)</script>", wrong: Some(&failure) };
        let page = home(&viewer, &timeline, true, draft).into_string();
        // The one script is our own; no handler, no image but the mark.
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert_eq!(page.matches("<img").count(), 1, "{page}");
        assert!(!page.contains("onmouseover=\"") && page.contains("&amp;lt;") && page.contains("&lt;/textarea&gt;"), "{page}");
        assert!(page.contains("dir=\"auto\"") && page.contains("24 Nov 2025, 16:00 UTC"), "{page}");
    }

    #[test]
    fn a_time_that_is_none_is_said_to_be_unknown() {
        assert!(when(PostId { time_us: u64::MAX, tag: 0 }).into_string().contains("unknown"));
        assert_eq!(day(u64::MAX), "an unknown day");
        assert_eq!(day(0), "1 January 1970");
    }
}
