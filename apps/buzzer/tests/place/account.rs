//! What people do with their accounts and posts, and what they are told when half of it fails.

use std::net::SocketAddr;

use bezant_client::{Key, Operation, Value};

use super::site::{ask, sign_up, token};
use super::{Place, site};

pub async fn all(place: &Place) {
    let site = place.site().await;
    a_new_password_ends_all_other_sessions(site.address).await;
    who_signs_in_anew_leaves_no_session_behind(site.address).await;
    who_signs_out_is_signed_out_also_where_the_cluster_does_not_answer(place).await;
    who_signs_out_everywhere_is_signed_in_nowhere(site.address).await;
    a_deleted_post_is_gone_from_every_timeline(site.address).await;
    an_account_is_said_to_be_made_also_where_no_session_begins(place, site.address).await;
    what_was_written_is_there_after_signing_in_again(site.address).await;
    what_was_written_is_there_where_the_cluster_does_not_answer(place).await;
    what_failed_first_is_said_also_where_the_timeline_fails(place, site.address).await;
    site.stop().await;
}

/// Signs in; gives the answer's status, and the cookie if there is one.
async fn sign_in(address: SocketAddr, name: &str, password: &str) -> (u16, String) {
    let answer = ask(address, "/sign-in", Some(&format!("name={name}&password={password}")), &[]).await;
    (answer.status, answer.header("set-cookie").split(';').next().unwrap_or_default().to_owned())
}

async fn is_signed_in(address: SocketAddr, cookie: &str) -> bool {
    ask(address, "/timeline", None, &[("cookie", cookie)]).await.status == 200
}

async fn a_new_password_ends_all_other_sessions(address: SocketAddr) {
    let cookie = sign_up(address, "careful").await;
    let (_, elsewhere) = sign_in(address, "careful", "correct+horse").await;
    let token = token(address, &cookie).await;
    let change = async |token: &str, old: &str, new: &str| {
        ask(address, "/password", Some(&format!("token={token}&old={old}&new={new}")), &[("cookie", &cookie)]).await
    };
    let settings = ask(address, "/settings", None, &[("cookie", &cookie)]).await;
    assert!(settings.status == 200 && settings.body.contains("action=\"/password\""), "{}", settings.body);
    assert_eq!(ask(address, "/settings", None, &[]).await.status, 303, "strangers have none");
    for (token, old, new, status, words) in [
        ("", "correct+horse", "battery+staple", 403, "This form is not valid"),
        (token.as_str(), "wrong+horse", "battery+staple", 422, "The old password is not right"),
        (token.as_str(), "correct+horse", "short", 422, "at least 8 characters"),
    ] {
        let refused = change(token, old, new).await;
        assert!(refused.status == status && refused.body.contains(words), "{old} {new}: {}", refused.body);
    }
    assert!(is_signed_in(address, &elsewhere).await);
    let changed = change(&token, "correct+horse", "battery+staple").await;
    assert!(changed.status == 200 && changed.body.contains("Your password is changed"), "{}", changed.body);
    let renewed = changed.header("set-cookie").split(';').next().expect("a pair").to_owned();
    assert!(is_signed_in(address, &renewed).await && !is_signed_in(address, &cookie).await && !is_signed_in(address, &elsewhere).await);
    let (cookie, token) = (renewed.clone(), site::token(address, &renewed).await);
    let change = async |token: &str, old: &str, new: &str| {
        ask(address, "/password", Some(&format!("token={token}&old={old}&new={new}")), &[("cookie", &cookie)]).await
    };
    assert_eq!(sign_in(address, "careful", "correct+horse").await.0, 401);
    assert_eq!(sign_in(address, "careful", "battery+staple").await.0, 303);
    assert!(ask(address, "/u/careful", None, &[]).await.body.contains("Here since"), "it is the same account");
    // Whoever has taken a session guesses slowly.
    let mut last = 0;
    for _ in 0..10 {
        last = change(&token, "wrong+horse", "battery+staple").await.status;
    }
    assert_eq!(last, 429);
}

async fn who_signs_out_everywhere_is_signed_in_nowhere(address: SocketAddr) {
    let cookie = sign_up(address, "leaves_all").await;
    let (_, elsewhere) = sign_in(address, "leaves_all", "correct+horse").await;
    let bystander = sign_up(address, "leaves_al").await;
    assert_eq!(ask(address, "/sign-out-everywhere", Some("token=00"), &[("cookie", &cookie)]).await.status, 403);
    let form = format!("token={}", token(address, &cookie).await);
    let out = ask(address, "/sign-out-everywhere", Some(&form), &[("cookie", &cookie)]).await;
    assert!(out.status == 303 && out.header("set-cookie").contains("Max-Age=0"));
    assert!(!is_signed_in(address, &cookie).await && !is_signed_in(address, &elsewhere).await);
    assert!(is_signed_in(address, &bystander).await);
    assert_eq!(sign_in(address, "leaves_all", "correct+horse").await.0, 303);
}

async fn who_signs_in_anew_leaves_no_session_behind(address: SocketAddr) {
    let before = sign_up(address, "returns").await;
    let enter = async |path: &str, name: &str, password: &str, cookie: &str| {
        ask(address, path, Some(&format!("name={name}&password={password}")), &[("cookie", cookie)]).await
    };
    assert_eq!(enter("/sign-in", "returns", "wrong+horse", &before).await.status, 401);
    assert!(is_signed_in(address, &before).await, "who is not let in loses nothing");
    let entered = enter("/sign-in", "returns", "correct+horse", &before).await;
    let after = entered.header("set-cookie").split(';').next().expect("a pair").to_owned();
    assert!(is_signed_in(address, &after).await && !is_signed_in(address, &before).await);
    assert_eq!(enter("/sign-up", "returns_as_another", "correct+horse", &after).await.status, 303);
    assert!(!is_signed_in(address, &after).await);
}

async fn who_signs_out_is_signed_out_also_where_the_cluster_does_not_answer(place: &Place) {
    let (site, client) = place.site_and_its_client().await;
    let cookie = sign_up(site.address, "leaves_a_ruin").await;
    let token = site::token(site.address, &cookie).await;
    client.close().await;
    let out = async |token: &str| ask(site.address, "/sign-out", Some(&format!("token={token}")), &[("cookie", &cookie)]).await;
    let left = out(&token).await;
    assert!(left.status == 503 && left.header("set-cookie").contains("Max-Age=0"), "{}", left.status);
    assert!(left.body.contains("This browser is signed out") && !left.body.contains("/sign-out"), "{}", left.body);
    let foreign = out("00").await;
    assert!(foreign.status == 403 && foreign.header("set-cookie").is_empty());
    site.stop().await;
}

async fn a_deleted_post_is_gone_from_every_timeline(address: SocketAddr) {
    let (author, reader) = (sign_up(address, "regrets").await, sign_up(address, "reads_on").await);
    let (own, foreign) = (token(address, &author).await, token(address, &reader).await);
    let send = async |path: &str, form: &str, cookie: &str| ask(address, path, Some(form), &[("cookie", cookie)]).await;
    for text in ["kept", "regretted"] {
        assert_eq!(send("/post", &format!("token={own}&text={text}"), &author).await.status, 303);
    }
    assert_eq!(send("/follow", &format!("token={foreign}&user=regrets"), &reader).await.status, 303);
    let page = ask(address, "/", None, &[("cookie", &author)]).await.body;
    let (_, after) = page.split_once("name=\"post\" value=\"").expect("a form beside the post");
    let id = after.split('"').next().expect("a value");
    let seen = ask(address, "/", None, &[("cookie", &reader)]).await.body;
    assert!(seen.contains("regretted") && !seen.contains("action=\"/delete\""), "nobody is offered to delete another's post");
    assert!(!ask(address, "/u/regrets", None, &[]).await.body.contains("action=\"/delete\""));
    // Nor can they.
    assert_eq!(send("/delete", &format!("token={foreign}&post={id}"), &author).await.status, 403);
    assert_eq!(send("/delete", &format!("token={own}&post=x"), &author).await.status, 404);
    assert_eq!(send("/delete", &format!("token={foreign}&post={id}&user=regrets"), &reader).await.header("location"), "/");
    assert!(ask(address, "/", None, &[("cookie", &reader)]).await.body.contains("regretted"));
    let deleted = send("/delete", &format!("token={own}&post={id}&user=regrets"), &author).await;
    assert_eq!((deleted.status, deleted.header("location")), (303, "/u/regrets"));
    for (path, cookie) in [("/", &author), ("/", &reader), ("/u/regrets", &reader)] {
        let page = ask(address, path, None, &[("cookie", cookie)]).await.body;
        assert!(page.contains("kept") && !page.contains("regretted"), "{path}: {page}");
    }
    // A second press asks for what is done.
    assert_eq!(send("/delete", &format!("token={own}&post={id}"), &author).await.header("location"), "/");
}

/// Writes what Buzzer does not.
async fn spoil(place: &Place, key: &str) {
    let client = place.client().await;
    client.run(vec![Operation::Put(Key::from(key), Value::from("nonsense"))]).await.expect("committed");
    client.close().await;
}

async fn an_account_is_said_to_be_made_also_where_no_session_begins(place: &Place, address: SocketAddr) {
    spoil(place, "buzzer/half_made/session/00").await;
    let made = ask(address, "/sign-up", Some("name=half_made&password=correct+horse"), &[]).await;
    assert!(made.status == 500 && made.header("set-cookie").is_empty(), "{}", made.status);
    assert!(made.body.contains("Your account is made") && !made.body.contains("Nothing was done"), "{}", made.body);
    assert!(made.body.contains("value=\"half_made\""), "the form to sign in has the name: {}", made.body);
    assert_eq!(ask(address, "/u/half_made", None, &[]).await.status, 200);
}

async fn what_was_written_is_there_after_signing_in_again(address: SocketAddr) {
    let cookie = sign_up(address, "goes_on_writing").await;
    let old = token(address, &cookie).await;
    assert_eq!(ask(address, "/sign-out", Some(&format!("token={old}")), &[("cookie", &cookie)]).await.status, 303);
    let lost = ask(address, "/post", Some(&format!("token={old}&text=long+%3Cb%3Ethought")), &[("cookie", &cookie)]).await;
    assert!(lost.status == 401 && lost.body.contains("You are signed out, so nothing was posted"), "{}", lost.body);
    let kept = |body: &str, name: &str| body.contains(&format!("name=\"{name}\"")) && body.contains("long &lt;b&gt;thought</textarea>");
    assert!(kept(&lost.body, "draft") && lost.body.contains("action=\"/sign-in\"") && !lost.body.contains("/sign-out"), "{}", lost.body);
    let again = async |password: &str| {
        ask(address, "/sign-in", Some(&format!("name=goes_on_writing&password={password}&draft=long+%3Cb%3Ethought")), &[]).await
    };
    let wrong = again("wrong+horse").await;
    assert!(wrong.status == 401 && kept(&wrong.body, "draft"), "{}", wrong.body);
    let entered = again("correct+horse").await;
    assert!(entered.status == 200 && kept(&entered.body, "text"), "{}", entered.body);
    let cookie = entered.header("set-cookie").split(';').next().expect("a pair").to_owned();
    assert!(!ask(address, "/u/goes_on_writing", None, &[]).await.body.contains("thought"), "it is for the user to post it");
    // A form from before that is not posted, and its text is not lost either.
    let stale = ask(address, "/post", Some(&format!("token={old}&text=long+%3Cb%3Ethought")), &[("cookie", &cookie)]).await;
    assert!(stale.status == 403 && kept(&stale.body, "text"), "{}", stale.body);
    let new = token(address, &cookie).await;
    assert!(stale.body.contains(&new));
    assert_eq!(ask(address, "/post", Some(&format!("token={new}&text=thought")), &[("cookie", &cookie)]).await.status, 303);
    // Whatever else is asked for without a session is not done.
    assert_eq!(ask(address, "/follow", Some(&format!("token={new}&user=careful")), &[]).await.status, 401);
}

async fn what_was_written_is_there_where_the_cluster_does_not_answer(place: &Place) {
    let (site, client) = place.site_and_its_client().await;
    let cookie = sign_up(site.address, "unheard").await;
    let token = token(site.address, &cookie).await;
    client.close().await;
    let failed = ask(site.address, "/post", Some(&format!("token={token}&text=hear+me")), &[("cookie", &cookie)]).await;
    assert!(failed.status == 503 && failed.body.contains("Nothing was done"), "{}", failed.body);
    assert!(failed.body.contains("hear me</textarea>") && failed.body.contains(&token), "{}", failed.body);
    site.stop().await;
}

async fn what_failed_first_is_said_also_where_the_timeline_fails(place: &Place, address: SocketAddr) {
    let cookie = sign_up(address, "unseen").await;
    let token = token(address, &cookie).await;
    spoil(place, "buzzer/unseen/following/No name").await;
    assert_eq!(ask(address, "/", None, &[("cookie", &cookie)]).await.status, 500);
    let refused = ask(address, "/post", Some(&format!("token={token}&text={}", "y".repeat(281))), &[("cookie", &cookie)]).await;
    assert!(refused.status == 422 && refused.body.contains("this one has 281"), "{}", refused.body);
    assert!(refused.body.contains(&format!("{}</textarea>", "y".repeat(281))), "{}", refused.body);
    assert_eq!(ask(address, "/post", Some(&format!("token={token}&text=hello")), &[("cookie", &cookie)]).await.status, 303);
}
