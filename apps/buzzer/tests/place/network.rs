//! The transactions, many at a time, from two servers.

use std::collections::BTreeSet;
use std::time::Duration;

use bezant_client::Operation;
use buzzer_model::{
    Changed, Created, Deleted, FOLLOWING_MAX, Followed, Keys, Name, Network, Opened, PostText, SESSIONS_MAX, Session, TIMELINE_MAX,
    Unfollowed,
};
use tokio::task::JoinSet;

use super::{Place, name};

pub async fn all(place: &Place) {
    let servers = [place.network().await, place.network().await];
    of_two_who_want_a_name_one_gets_it(&servers).await;
    posts_come_newest_first_and_in_pages(&servers).await;
    edges_are_on_both_sides_and_counted_whoever_does_what(&servers).await;
    nobody_follows_more_than_a_timeline_can_show(&servers).await;
    no_answer_is_read_before_its_question(&servers).await;
    an_unfollowed_user_is_gone_from_every_later_timeline(&servers).await;
    a_deleted_post_is_gone_at_every_server(&servers).await;
    a_profile_is_of_one_moment(place, &servers[0]).await;
    sessions_last_until_they_end(&servers[0]).await;
    no_session_outlasts_its_password(&servers).await;
}

async fn accounts(network: &Network, names: &[&str]) -> Vec<Name> {
    let names: Vec<Name> = names.iter().map(|text| name(text)).collect();
    for name in &names {
        assert_eq!(network.create_account(name, 5, "hash").await.expect("committed"), Created::Now);
    }
    names
}

fn text(text: &str) -> PostText {
    text.parse().expect("a text")
}

async fn of_two_who_want_a_name_one_gets_it([one, other]: &[Network; 2]) {
    let wanted = &name("wanted");
    let made = tokio::join!(one.create_account(wanted, 1, "first hash"), other.create_account(wanted, 2, "second hash"));
    let made = [made.0.expect("committed"), made.1.expect("committed")];
    assert!(made.contains(&Created::Now) && made.contains(&Created::Taken), "{made:?}");
    let account = one.account(wanted).await.expect("read").expect("it was made");
    let hash = if made[0] == Created::Now { "first hash" } else { "second hash" };
    assert_eq!(account.password_hash, hash);
    assert_eq!(one.account(&name("nobody")).await.expect("read"), None);
}

async fn posts_come_newest_first_and_in_pages([one, other]: &[Network; 2]) {
    let names = accounts(one, &["ann", "zoe"]).await;
    assert_eq!(one.follow(&names[0], &names[1], 7).await.expect("committed").value, Followed::Now);
    let mut written = Vec::new();
    for number in 0..TIMELINE_MAX + 3 {
        let (network, author) = if number % 2 == 0 { (one, &names[0]) } else { (other, &names[1]) };
        // Each server reads what the other wrote, as people do before they answer: its clock is not behind then.
        network.timeline(&names[0], None, 5).await.expect("committed");
        let post = format!("post {number}");
        network.post(author, &text(&post)).await.expect("committed");
        written.insert(0, post);
    }
    let first = other.timeline(&names[0], None, TIMELINE_MAX).await.expect("committed").value;
    let said = |posts: &[buzzer_model::Shown]| posts.iter().map(|post| post.text.clone()).collect::<Vec<_>>();
    assert_eq!(said(&first.posts), written[..TIMELINE_MAX]);
    assert!(first.has_more && first.following == [names[1].clone()]);
    let before = first.posts.last().map(|post| post.id);
    let second = other.timeline(&names[0], before, TIMELINE_MAX).await.expect("committed").value;
    assert_eq!(said(&second.posts), written[TIMELINE_MAX..]);
    assert!(!second.has_more);
    let profile = one.profile(&names[1], Some(&names[0]), None).await.expect("committed").expect("she is there");
    assert_eq!((profile.joined, profile.following, profile.followers, profile.is_followed), (5, 0, 1, true));
    assert!(profile.posts.iter().all(|post| post.author == names[1]) && profile.posts.len() == (TIMELINE_MAX + 3) / 2);
    assert_eq!(one.profile(&name("nobody"), None, None).await.expect("committed"), None);
}

/// Many follow and unfollow the same few at once, and post; then both sides of each edge agree, and the counts with them.
async fn edges_are_on_both_sides_and_counted_whoever_does_what(servers: &[Network; 2]) {
    let names = accounts(&servers[0], &["crowd_a", "crowd_b", "nest_a", "nest_b", "zest"]).await;
    let mut tasks = JoinSet::new();
    for task in 0..8_usize {
        let (network, names) = (servers[task % 2].clone(), names.clone());
        tasks.spawn(async move {
            for step in 0..12_usize {
                let at = task * 7 + step * 3;
                let (user, other) = (&names[at % 3], &names[(at / 3 + 1 + at % 3) % names.len()]);
                match step % 3 {
                    0 | 1 => drop(network.follow(user, other, 9).await.expect("committed")),
                    _ => drop(network.unfollow(user, other).await.expect("committed")),
                }
                network.post(other, &text("busy")).await.expect("committed");
                let seen = network.timeline(user, None, 10).await.expect("committed").value;
                assert!(seen.posts.iter().all(|post| post.author == *user || seen.following.contains(&post.author)), "{seen:?}");
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("it does not panic");
    }
    check_edges(&servers[0], &names).await;
}

async fn check_edges(network: &Network, names: &[Name]) {
    let mut edges = [BTreeSet::new(), BTreeSet::new()];
    for user in names {
        let following = network.following(user, None).await.expect("read");
        let profile = network.profile(user, None, None).await.expect("read").expect("it is there");
        assert_eq!(profile.following, following.len() as u64, "{user}");
        edges[0].extend(following.into_iter().map(|other| (user.clone(), other)));
        edges[1].extend(network.followers(user, None).await.expect("read").into_iter().map(|other| (other, user.clone())));
    }
    assert_eq!(edges[0], edges[1]);
}

async fn nobody_follows_more_than_a_timeline_can_show([one, other]: &[Network; 2]) {
    let fan = &accounts(one, &["fan"]).await[0];
    let stars: Vec<Name> = (0..=FOLLOWING_MAX).map(|number| name(&format!("star{number}"))).collect();
    for star in &stars {
        one.create_account(star, 1, "hash").await.expect("committed");
    }
    for star in &stars[..FOLLOWING_MAX - 1] {
        assert_eq!(one.follow(fan, star, 1).await.expect("committed").value, Followed::Now);
    }
    // There is room for one more, and two want it.
    let last = &stars[FOLLOWING_MAX - 1..];
    let tried = tokio::join!(one.follow(fan, &last[0], 1), other.follow(fan, &last[1], 1));
    let tried = [tried.0.expect("committed").value, tried.1.expect("committed").value];
    assert!(tried.contains(&Followed::Now) && tried.contains(&Followed::TooMany), "{tried:?}");
    for (user, came) in [(&stars[0], Followed::Already), (&name("nobody"), Followed::Nobody), (fan, Followed::Oneself)] {
        assert_eq!(one.follow(fan, user, 1).await.expect("committed").value, came);
    }
    for star in &stars {
        one.post(star, &text(&format!("of {star}"))).await.expect("committed");
    }
    let timeline = other.timeline(fan, None, TIMELINE_MAX).await.expect("it is within a transaction's limits").value;
    assert_eq!((timeline.following.len(), timeline.posts.len()), (FOLLOWING_MAX, TIMELINE_MAX));
    assert_eq!(one.unfollow(fan, &stars[0]).await.expect("committed").value, Unfollowed::Now);
    assert_eq!(one.unfollow(fan, &stars[0]).await.expect("committed").value, Unfollowed::NotFollowed);
    check_edges(one, &[vec![fan.clone()], stars].concat()).await;
}

/// One asks, another answers what was asked once it is there, and readers look all the while.
async fn no_answer_is_read_before_its_question([one, other]: &[Network; 2]) {
    let names = accounts(one, &["asks", "replies", "watches"]).await;
    for followed in &names[..2] {
        one.follow(&names[2], followed, 1).await.expect("committed");
    }
    let (network, authors) = (other.clone(), names.clone());
    let mut talk = tokio::spawn(async move {
        for round in 0..12 {
            for (author, said) in [(&authors[0], "question"), (&authors[1], "answer")] {
                network.post(author, &text(&format!("{said} {round}"))).await.expect("committed");
            }
        }
    });
    let mut looks = 0;
    loop {
        let is_over = talk.is_finished();
        let seen = one.timeline(&names[2], None, TIMELINE_MAX).await.expect("committed").value;
        let said: BTreeSet<&str> = seen.posts.iter().map(|post| post.text.as_str()).collect();
        for answer in said.iter().filter_map(|text| text.strip_prefix("answer ")) {
            assert!(said.contains(format!("question {answer}").as_str()), "{said:?}");
        }
        looks += 1;
        if is_over {
            assert_eq!(said.len(), 24);
            break;
        }
    }
    assert!(looks > 1);
    (&mut talk).await.expect("it does not panic");
}

async fn an_unfollowed_user_is_gone_from_every_later_timeline([one, other]: &[Network; 2]) {
    let names = accounts(one, &["leaves", "writes_on"]).await;
    one.follow(&names[0], &names[1], 1).await.expect("committed");
    let (network, author) = (other.clone(), names[1].clone());
    let writing = tokio::spawn(async move {
        for number in 0..10 {
            network.post(&author, &text(&format!("number {number}"))).await.expect("committed");
        }
    });
    while one.timeline(&names[0], None, 10).await.expect("committed").value.posts.is_empty() {}
    one.unfollow(&names[0], &names[1]).await.expect("committed");
    let after = one.timeline(&names[0], None, 10).await.expect("committed").value;
    assert!(after.posts.is_empty() && after.following.is_empty(), "{after:?}");
    writing.await.expect("it does not panic");
    let profile = one.profile(&names[1], None, None).await.expect("read").expect("it is there");
    assert_eq!(profile.posts.len(), 10);
}

async fn a_deleted_post_is_gone_at_every_server([one, other]: &[Network; 2]) {
    let names = accounts(one, &["deletes", "follows_on"]).await;
    one.follow(&names[1], &names[0], 1).await.expect("committed");
    let [first, second] = ["first", "second"].map(text);
    let id = one.post(&names[0], &first).await.expect("committed").value;
    one.post(&names[0], &second).await.expect("committed");
    assert_eq!(one.delete_post(&names[1], id).await.expect("committed").value, Deleted::Absent, "it is not theirs");
    // Of two who delete it at once, one does.
    let deleted = tokio::join!(one.delete_post(&names[0], id), other.delete_post(&names[0], id));
    let deleted = [deleted.0.expect("committed").value, deleted.1.expect("committed").value];
    assert!(deleted.contains(&Deleted::Now) && deleted.contains(&Deleted::Absent), "{deleted:?}");
    for reader in &names {
        let seen = other.timeline(reader, None, 10).await.expect("committed").value;
        assert_eq!(seen.posts.iter().map(|post| post.text.as_str()).collect::<Vec<_>>(), ["second"]);
    }
}

/// What a profile reads before its commit may be of different moments, such as before and after the account was made. Here the count comes late for
/// certain.
async fn a_profile_is_of_one_moment(place: &Place, network: &Network) {
    let (client, user) = (place.client().await, name("halfway"));
    let [account, count] = Keys::under("buzzer").account_rows(&user, 5, "hash", 0).map(|(key, value)| vec![Operation::Put(key, value)]);
    client.run(account).await.expect("committed");
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        client.run(count).await.expect("committed");
    };
    let (seen, ()) = tokio::join!(network.profile(&user, None, None), late);
    assert_eq!(seen.expect("it was tried again").map(|profile| (profile.joined, profile.following)), Some((5, 0)));
}

async fn sessions_last_until_they_end(network: &Network) {
    let user = &accounts(network, &["signs_in"]).await[0];
    let open = async |digest: &str, now: u64, expires: u64| {
        let opened = network.open_session(user, "hash", digest, now, Session { expires }).await.expect("committed");
        assert_eq!(opened, Opened::Now);
    };
    let lasts = async |digest: &str, now: u64| network.session(user, digest, now).await.expect("read").is_some();
    open("aa", 100, 200).await;
    assert!(lasts("aa", 199).await && !lasts("aa", 200).await && !lasts("bb", 100).await);
    network.close_session(user, "aa").await.expect("committed");
    assert!(!lasts("aa", 100).await);
    for number in 0..SESSIONS_MAX as u64 {
        open(&format!("c{number}"), 100, 300 + number).await;
    }
    open("one more", 100, 900).await;
    assert!(!lasts("c0", 100).await && lasts("c1", 100).await && lasts("one more", 100).await);
    // Those that are over make room by themselves.
    open("later", 304, 900).await;
    assert!(!lasts("c4", 100).await && lasts("c5", 304).await && lasts("later", 304).await);
}

async fn no_session_outlasts_its_password([one, other]: &[Network; 2]) {
    let users = &accounts(one, &["changes", "changes_not"]).await;
    let session = Session { expires: 900 };
    let open = async |user: &Name, hash: &str, digest: &str| one.open_session(user, hash, digest, 100, session).await.expect("committed");
    let lasts = async |user: &Name, digest: &str| other.session(user, digest, 100).await.expect("read").is_some();
    for digest in ["aa", "bb", "cc"] {
        assert_eq!(open(&users[0], "hash", digest).await, Opened::Now);
    }
    assert_eq!(open(&users[1], "hash", "aa").await, Opened::Now);
    let change = async |old: &str, new: &str| other.change_password(&users[0], old, new, "ee", session).await.expect("committed");
    assert_eq!(change("wrong hash", "new hash").await, Changed::OtherPassword);
    assert!(lasts(&users[0], "aa").await);
    assert_eq!(change("hash", "new hash").await, Changed::Now);
    assert!(lasts(&users[0], "ee").await, "the browser in which it was changed has a session");
    for gone in ["aa", "bb", "cc"] {
        assert!(!lasts(&users[0], gone).await, "{gone}");
    }
    assert!(lasts(&users[1], "aa").await);
    // Whoever was let in by the old password while it was changed comes too late.
    assert_eq!(open(&users[0], "hash", "dd").await, Opened::OtherPassword);
    assert!(!lasts(&users[0], "dd").await);
    assert_eq!(open(&users[0], "new hash", "dd").await, Opened::Now);
    let account = one.account(&users[0]).await.expect("read").expect("it is there");
    assert_eq!((account.joined, account.password_hash.as_str()), (5, "new hash"));
    one.close_sessions(&users[0]).await.expect("committed");
    assert!(!lasts(&users[0], "ee").await && !lasts(&users[0], "dd").await && lasts(&users[1], "aa").await);
}
