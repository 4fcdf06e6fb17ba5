//! How often anybody may do what costs something, or fills the cluster.

use buzzer_model::Name;

use crate::failure::Failure;
use crate::guard::{HOUR, MINUTE, RateLimit, SourceLimit};
use crate::source::Source;

/// How often those of one subnet may try to sign in or up in a minute: each try costs a hash.
const SIGN_INS_OF_SUBNET: u32 = 30;
/// How many wrong passwords may be tried for one name in a minute from one subnet, and from all together. The second is far more, so that it takes several
/// networks to keep somebody from signing in.
const WRONG_OF_NAME_AND_SUBNET: u32 = 10;
const WRONG_OF_NAME: u32 = 100;
/// How many accounts those of one subnet may make in an hour. Limits by account are worth as much as accounts are few.
const SIGN_UPS_OF_SUBNET: u32 = 20;
/// How many posts, deletions, follows and unfollows a user may ask for in a minute, and all users of one subnet.
const CHANGES_OF_USER: u32 = 60;
const CHANGES_OF_SUBNET: u32 = 240;
/// How often a user's old password may be shown for a new one in a minute. It is apart from what is counted of their name, so that strangers who try that
/// keep nobody from it.
const PASSWORD_CHANGES_OF_USER: u32 = 10;

/// What was done of late, by whom and from where.
#[derive(Debug)]
pub(crate) struct Limits {
    sign_ins_of_source: SourceLimit<()>,
    wrong_of_name_and_source: SourceLimit<Name>,
    wrong_of_name: RateLimit<Name>,
    sign_ups_of_source: SourceLimit<()>,
    changes_of_user: RateLimit<Name>,
    changes_of_source: SourceLimit<()>,
    password_changes_of_user: RateLimit<Name>,
}

impl Limits {
    pub(crate) fn new() -> Self {
        Self {
            sign_ins_of_source: SourceLimit::new(SIGN_INS_OF_SUBNET, MINUTE),
            wrong_of_name_and_source: SourceLimit::new(WRONG_OF_NAME_AND_SUBNET, MINUTE),
            wrong_of_name: RateLimit::new(WRONG_OF_NAME, MINUTE),
            sign_ups_of_source: SourceLimit::new(SIGN_UPS_OF_SUBNET, HOUR),
            changes_of_user: RateLimit::new(CHANGES_OF_USER, MINUTE),
            changes_of_source: SourceLimit::new(CHANGES_OF_SUBNET, MINUTE),
            password_changes_of_user: RateLimit::new(PASSWORD_CHANGES_OF_USER, MINUTE),
        }
    }

    /// Counts a password that is about to be checked as a wrong one, so that many at once are not more than may be.
    pub(crate) fn password_of(&self, name: &Name, from: Source) -> Result<(), Failure> {
        self.wrong_of_name_and_source.admit(name.clone(), from).map_err(too_many_sign_ins)?;
        self.wrong_of_name.admit(name.clone()).map_err(too_many_sign_ins)
    }

    /// It was the right one.
    pub(crate) fn password_was_right(&self, name: &Name, from: Source) {
        self.wrong_of_name_and_source.give_back(name.clone(), from);
        self.wrong_of_name.give_back(name);
    }

    /// Counts a form to sign in or up.
    pub(crate) fn form_with_password(&self, from: Source) -> Result<(), Failure> {
        self.sign_ins_of_source.admit((), from).map_err(too_many_sign_ins)
    }

    /// Counts an account that is about to be made.
    pub(crate) fn sign_up(&self, from: Source) -> Result<(), Failure> {
        self.sign_ups_of_source.admit((), from).map_err(|seconds| Failure::too_often("new accounts from your network", seconds))
    }

    /// The account was not made.
    pub(crate) fn sign_up_failed(&self, from: Source) {
        self.sign_ups_of_source.give_back((), from);
    }

    /// Counts a post, a deletion, a follow or an unfollow.
    pub(crate) fn change(&self, user: &Name, from: Source) -> Result<(), Failure> {
        let too_often = |seconds| Failure::too_often("posts and changes", seconds);
        self.changes_of_user.admit(user.clone()).map_err(too_often)?;
        self.changes_of_source.admit((), from).map_err(too_often)
    }

    /// Counts a try to change a password.
    pub(crate) fn password_change(&self, user: &Name) -> Result<(), Failure> {
        let too_often = |seconds| Failure::too_often("attempts to change the password", seconds);
        self.password_changes_of_user.admit(user.clone()).map_err(too_often)
    }
}

fn too_many_sign_ins(seconds: u64) -> Failure {
    Failure::too_often("attempts to sign in", seconds)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn at(last: u8) -> Source {
        IpAddr::from([192, 0, 2, last]).into()
    }

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn whoever_has_many_accounts_changes_no_more_than_their_network_may() {
        let limits = Limits::new();
        for user in 0..4 {
            let user = name(&format!("user{user}"));
            assert!((0..CHANGES_OF_USER).all(|_| limits.change(&user, at(1)).is_ok()) && limits.change(&user, at(1)).is_err());
        }
        assert!(limits.change(&name("user4"), at(1)).is_err(), "a fifth account finds the network's changes used up");
        assert!(limits.change(&name("user5"), at(2)).is_ok());
    }

    #[test]
    fn who_tries_a_name_from_one_network_keeps_nobody_else_from_it() {
        let limits = Limits::new();
        let (ann, wrong) = (name("ann"), |from: u8| limits.password_of(&name("ann"), at(from)));
        for _ in 0..1_000 {
            assert!(wrong(1).is_ok());
            limits.password_was_right(&ann, at(1));
        }
        assert!((0..WRONG_OF_NAME_AND_SUBNET).all(|_| wrong(1).is_ok()) && wrong(1).is_err(), "only wrong ones count");
        assert!(limits.password_of(&name("bob"), at(1)).is_ok(), "other names are others");
        for from in 2..=10 {
            assert!((0..WRONG_OF_NAME_AND_SUBNET).all(|_| wrong(from).is_ok()), "{from}");
        }
        assert!(wrong(11).is_err(), "all networks together guess slowly, too");
    }

    #[test]
    fn a_network_makes_few_accounts_and_those_that_are_not_made_do_not_count() {
        let limits = Limits::new();
        for _ in 0..100 {
            assert!(limits.sign_up(at(1)).is_ok());
            limits.sign_up_failed(at(1));
        }
        assert!((0..SIGN_UPS_OF_SUBNET).all(|_| limits.sign_up(at(1)).is_ok()) && limits.sign_up(at(1)).is_err());
        assert!(limits.sign_up(at(2)).is_ok());
    }
}
