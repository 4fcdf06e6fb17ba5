//! Rules that can be broken on purpose, one at a time, to see that somebody notices.
//!
//! Where a rule is kept, the code asks [`broken`]. In every ordinary build the answer is a constant `false`, and nothing of
//! this is left. Builds with the feature `enabled` are made to see who notices: there a thread may break one rule
//! (`breaking`) for as long as a run takes, or a whole process the one that its environment names (`BEZANT_MUTANT`).
//! `docs/testing.md` lists what catches each.

/// Lists the mutants: the rule each one breaks, and what it does instead.
macro_rules! mutants {
    ($($mutant:ident: $rule:literal, $broken:literal;)*) => {
        /// A rule that can be broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Mutant {
            $(#[doc = concat!($rule, ": ", $broken, ".")] $mutant,)*
        }

        impl Mutant {
            /// All of them, in the order of the protocol.
            pub const ALL: &[Self] = &[$(Self::$mutant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$mutant => stringify!($mutant),)* }
            }

            /// The rule it breaks: where it stands in the paper or in the book.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self { $(Self::$mutant => $rule,)* }
            }

            /// What happens instead.
            #[must_use]
            pub fn broken(self) -> &'static str {
                match self { $(Self::$mutant => $broken,)* }
            }
        }
    };
}

mutants! {
    FutureEntered: "Alg. 1 L1-2", "a transaction may lie as far in the future as its client likes";
    FutureReader: "Alg. 1 L1-2, for reads", "keys may be read as far in the future as a client likes";
    EarlyRead: "order", "a replica answers a read before its own clock has reached the timestamp";
    EarlyVote: "order", "a replica votes before its own clock has reached the timestamp";
    ClockSetBack: "order", "a replica whose clock was set back shows an earlier time than that of what it voted for";
    OwnClock: "order", "a client takes its timestamps from its own clock";
    LowestClock: "order", "a client takes the lowest bound on a replica's clock for the cluster's time";
    StepUnnoticed: "order", "a client whose clock stood still goes on with what it began before it noticed";
    OldClockOutlived: "order", "what is taken from a clock that showed too little, before another is told, is taken for right";
    PauseOutlived: "order", "answers that were under way while a client stood still bound clocks after it has noticed";
    StartsAlone: "order", "a replica that starts goes by its machine's clock, whatever the others' show";
    ServesAtOnce: "order", "a replica whose clock was set reads and votes at once, while clients may rely on what it showed before";
    ClockKnownForEver: "order", "a client goes on with what it has heard of the replicas' clocks, however long ago";
    PastEntered: "the window", "what lies below the window is still voted on";
    WindowUnhalved: "the window", "an author may begin at the very edge of the window";
    LateRefused: "the window", "what an author brings too late is refused, and others may still finish it";
    DependencyUnknown: "Alg. 1 L3-4", "a dependency that nobody here knows counts as committed";
    DependencyOfOther: "Alg. 1 L3-4", "a dependency may name a transaction that did not write the version read";
    FutureRead: "Alg. 1 L6", "a transaction may have read from its own future";
    PreparedWriteMissed: "Alg. 1 L7", "prepared writes between what was read and the reader are overlooked";
    CommittedWriteMissed: "Alg. 1 L7", "committed writes between what was read and the reader are overlooked";
    ReaderMissed: "Alg. 1 L10", "readers past what is written are overlooked";
    CommittedReaderMissed: "Alg. 1 L10", "readers count only until they have committed";
    ReadersExpireEarly: "Alg. 1 L10", "a key's readers are let go when the next one comes, however young they are";
    PreparedPhantom: "ranges", "prepared writes into a range, of keys that the reader does not know, are overlooked";
    CommittedPhantom: "ranges", "committed writes into a range, of keys that the reader does not know, are overlooked";
    RangeTimestampUnraised: "ranges", "a range that is read leaves no read timestamp";
    RangeUnprotected: "ranges", "what is written into a range that a transaction has read is judged without regard to it";
    RangeFloorForgotten: "ranges", "read timestamps of ranges for which there is no room are forgotten";
    RangeValidatedByFew: "ranges", "one replica fewer than 3f+1 validates a range";
    RangeOfOne: "ranges", "a range is covered up to where one reply is complete";
    RangeUncut: "ranges", "a range counts as read to its end, though its reader stopped before";
    RangeCutAtWrongEnd: "ranges", "a range that was read from its end counts as read from its beginning, up to where its reader stopped";
    RangeRaisedAtWrongEnd: "ranges", "a range that is read from its end leaves its read timestamp at the other end";
    DescentBeginsTooLow: "ranges", "the base table is read from its end without the rows that stand with the first of them";
    DeletedForGood: "ranges", "a range found to have nothing but deleted keys is passed over whatever is written there";
    DeletedLater: "ranges", "a range found to have nothing but deleted keys is passed over by who reads from before they were deleted";
    NewerPassed: "ranges", "a range is found to have nothing but deleted keys though one of them has a newer version, above the reader";
    DeletionHidden: "ranges", "a range shows an undecided write though a later deletion, which it leaves out, has committed";
    UntoldBelieved: "ranges", "an old value that is vouched for is taken for the newest though some tell nothing of its key";
    ValidatedUnpreferred: "ranges", "what few show is read though enough validate that there is nothing";
    RangeContradicted: "ranges", "a transaction commits though one of its reads and one of its ranges tell of a key otherwise";
    ReadTimestampIgnored: "Alg. 1 L12", "read timestamps are overlooked";
    ReadTimestampUnraised: "Alg. 1 L12", "a read leaves no read timestamp";
    UnpromisedAskedAgain: "held off", "replicas that promised nothing are asked once more at the commit, before anybody votes";
    UnpromisedCounted: "held off", "an answer that promises nothing validates a read";
    HeldOffForgotten: "held off", "a key whose writer was held off is promised to the next reader all the same";
    HeldOffUnshared: "held off", "whose writers were held off for many keys has others' forgotten with its own";
    TurnWithheld: "held off", "a reader that was promised nothing, and whose transaction aborted, is promised nothing the next time, either";
    TurnOfReadersAlone: "held off", "who also writes is promised nothing the next time, however often its transactions abort";
    TurnUnauthored: "held off", "a client has a turn for what others brought in its name";
    LostReadsUnsettled: "held off", "what was read and lost again and again is read no otherwise the next time";
    PastUnpromised: "held off", "nor is a reader of the past promised anything, who holds nobody off";
    OthersNamePromised: "held off", "who reads in the name of another is promised that nothing comes between";
    PastRangeLifted: "ranges", "a range that is read in the past counts as read whenever any part of it last was";
    WriteFloorIgnored: "Alg. 1 L12, after a restart", "a replica that comes back lets be written what it once let be read";
    RestoredReaderMissed: "Alg. 1 L10, after a restart", "a replica that comes back lets be written below what committed transactions have read";
    ReadCeilingUnlogged: "Alg. 1 L12, after a restart", "how far it let keys be read is not written down";
    BoundsReleased: "Alg. 1 L12, after a restart", "what was written of that goes with the journal's old part";
    PreparedUnseen: "Alg. 1 L14", "what is prepared counts in no other transaction's check";
    DependencyNotAwaited: "Alg. 1 L15", "a vote does not wait for what the transaction read from";
    DependencyAbortForgotten: "Alg. 1 L16-18", "who read from what has aborted may still be prepared";
    DependencyAbortForgiven: "Alg. 1 L16-18", "who waited for what aborts is voted for all the same";
    TimestampShared: "one timestamp, one transaction", "two transactions under one timestamp are both voted for";
    RightsIgnored: "rights", "a client may write what it has no right to";
    ConfigurationOfFew: "configurations", "one signature of an operator too few is enough";
    OldConfigurationTaken: "configurations", "a configuration is taken over that does not follow the newest one";
    ForkUnsigned: "configurations", "operators are said to have signed two configurations of one version, whoever signed the second";
    PlacesChangeTogether: "configurations", "more than f places of a shard get another key at once";
    GoneKeyReturns: "configurations", "a key that an earlier configuration took out comes back";
    MovedKeyTaken: "configurations", "a key gets another owner from one configuration to the next";
    GoneKeyBelieved: "configurations", "what a key signed that a configuration took out goes on to count";
    ConfigurationUnbounded: "configurations", "a configuration may be as long as those who sign it like";
    ConfigurationsPileUp: "configurations", "configurations are handed to clients however many of them wait to be written";
    ConfigurationUnkept: "configurations", "a configuration is gone by that could not be written down";
    EarlierKeyUnchecked: "configurations", "whatever is signed badly in the name of a place whose key was changed is forgiven";
    EarlierVotesKept: "configurations", "votes that an earlier key signed go on to count for who collects them";
    EarlierVoteHeard: "configurations", "a vote that was checked before a change of keys counts although it is heard after it";
    ClientHandsOn: "configurations", "clients hand on every configuration that they hear of";
    RevokedHeard: "configurations", "what was sent by who was taken out is still taken in";
    WordsOfOldKey: "configurations", "what a replica said under a key that was changed still counts, as long as nobody signed it";
    JournalOfOldKey: "configurations", "a replica is held to what was told of its journal under a key that it has no more";
    JournalOfOldKeyRestored: "configurations", "a replica is held to what was told of its journal under a key that was changed while whoever was told was down";
    EarlierKeysPromiseBroken: "configurations", "a replica that starts votes for what lies below what whoever had its earlier key may have promised";
    RevokedStays: "configurations", "who was taken out keeps its connections";
    RightsKept: "configurations", "a replica goes on by the rights that it began with";
    ClientLimitFinal: "configurations", "a client takes refusals for its limits to mean that its transaction never happens";
    ClientLimitsIgnored: "configurations", "what the operators allow one client is not looked at";
    LiarServed: "evidence", "a client that was seen to lie is served as before";
    HonestConvicted: "evidence", "a replica that repeats its vote counts as one that contradicts it";
    FollowerConvicted: "evidence", "a replica that follows a later leader to another decision counts as one that contradicts itself";
    SecretRead: "rights", "a client may read what it has no right to";
    SecretRange: "rights", "a client may read a range of keys that it has no right to";
    SecretShown: "rights", "a prepared transaction is shown to those who may not read all it touches";
    ProofShown: "rights", "the proof of a conflict is shown to those who may not read all of the transaction in the way";
    GuessAnswered: "rights", "whoever guesses a transaction that it may not read is told that the guess is right";
    AuthorUnasked: "authorship", "whoever brings a transaction may have it voted on";
    EvidenceOfOne: "authorship", "one vote shows that a transaction is its author's";
    UnauthoredKept: "authorship", "what nobody authored is never voted down";
    VoteReconsidered: "votes are final", "who asks again gets a new judgement";
    VoteUnlogged: "votes are final", "a vote is not written to the journal";
    UndecidedNotRewritten: "votes are final", "what is undecided goes with the journal's old part";
    UndecidedForgotten: "votes are final", "what is undecided is forgotten below the window";
    ResurrectedVotes: "votes are final", "a resurrected transaction is voted on as if it were new";
    LoadUnlimited: "limits", "undecided work is taken in without bound";
    ShareUnlimited: "limits", "one client may fill all the room there is for undecided work";
    FinishingUnreserved: "limits", "what is brought to be finished finds no room where others have prepared much";
    ValuesKept: "limits", "what decided transactions wrote is kept with them, however much it is";
    ValuesNotFound: "limits", "a committed transaction whose values stand at its keys alone is told to nobody";
    ChargedForAll: "limits", "a replica is charged for what is due to all, when its message is the last that was missing";
    ReadersUncounted: "limits", "one vote looks at all readers of a key, however many there are";
    RangeUncounted: "limits", "one vote looks at all deleted keys of a range, however many there are";
    VoteReadsAll: "limits", "one vote reads rows from disk however many bytes they have";
    ScanReadsAll: "limits", "one page of a scan reads rows from disk however many bytes they have";
    QueryReadsAll: "limits", "one question of another replica about an orphan has rows read from disk however many bytes they have";
    QueryReadsUncharged: "limits", "a replica that asks again and again about orphans has rows read from disk each time";
    WorkUncharged: "limits", "a client's messages cost it what they carry, however long they take";
    WaitUncounted: "limits", "a turn ends by how long it has worked, however long it has waited for the disk";
    EarlyUnshared: "limits", "requests that came early are served as soon as they are due, whoever's turn it is, and nobody is charged for them";
    VotedDownCounted: "limits", "what was voted down long ago counts as undecided until it is forgotten";
    FabricatedAbortKept: "limits", "transactions that are made up along with the proof that they aborted are taken in without bound";
    AuthorCharged: "limits", "undecided work counts against the author it names, whoever brought it";
    AbandonmentUnlimited: "limits", "a client may leave as many transactions for others to end as it likes";
    ReadOfOne: "§4.1", "a version counts when one replica shows it";
    VotersAdded: "§4.1", "those who show a version committed vouch for any transaction that is said to have written it";
    RefusalOfOne: "§4.1", "one replica's refusal ends a read";
    OverloadOfOne: "beyond the paper", "one replica's word that it has too much to do ends a read";
    ValidationQuorum: "read-only", "one replica fewer than 3f+1 validates a read";
    PreparedValidated: "read-only", "a read is validated though something newer is prepared";
    DependencyValidated: "read-only", "a read of what is only prepared is validated as one of what is committed";
    AllCommitsRecent: "read-only", "whatever is prepared is taken for what the reader's process has seen commit";
    UnkeptRead: "the past", "a replica lets be read what lies below what it keeps";
    MomentPassed: "the past", "a checkpoint goes past a moment that somebody reads page by page";
    MomentsUnbounded: "the past", "as many moments are kept as clients begin to read";
    MomentForAnybody: "the past", "whoever asks may read on at a moment that is kept for another";
    AsOfUnvalidated: "the past", "whoever reads the past takes what f+1 show, validated or not";
    AsOfWriterLeft: "the past", "whoever reads the past leaves the writers in its way to others";
    AsOfBegunAgain: "the past", "whoever reads the past is sent away where one who reads the present would begin again";
    AgoUnchecked: "the past", "whoever reads what was so long ago counts from a clock that may have shown too little";
    HiddenDenied: "read-only", "what may not be shown is denied";
    CommitSlowQuorum: "§4.2 (1)", "one vote fewer than 3f+1 commits slowly";
    AbortSlowQuorum: "§4.2 (2)", "one vote fewer than f+1 aborts slowly";
    CommitFastQuorum: "§4.2 (3)", "one vote fewer than 5f+1 commits fast";
    AbortFastQuorum: "§4.2 (4)", "one vote fewer than 3f+1 aborts fast";
    VoterCountedTwice: "§4.2", "a replica that votes twice counts twice";
    ConflictBelieved: "§4.2 (5)", "a client believes that whatever it is shown stands in its way";
    ConflictInvented: "§4.2 (5)", "any committed transaction conflicts with any other";
    TooOldOfOne: "§4.2", "one replica that refuses a transaction as too old shows that it never happens";
    LateRefusalBelieved: "§4.2", "replicas that refuse what they may have voted on and forgotten show that it never happens";
    DecisionUnjustified: "§4.2 (5)", "any decision may be logged";
    DisconnectedWaitedFor: "§4.2 (5)", "votes are waited for that nobody without a connection can be asked for";
    LoggedAnywhere: "§4.2 (5)", "a decision may be logged on any shard that takes part";
    LoggedTwice: "§4.2 (6)", "another decision takes the place of the one logged";
    DecisionUnlogged: "§4.2 (6)", "a logged decision is not written to the journal";
    LoggedQuorum: "§4.2 (7)", "one logged decision fewer than 4f+1 makes a certificate";
    OldRecoveryDropped: "order", "a replica that has just started does not answer of what nobody votes for any more";
    CertificateOfOther: "§4.3", "a certificate may be about another transaction";
    ShardUncovered: "§4.3", "a certificate need not cover every shard";
    SideUnchecked: "§4.3", "votes to abort make a certificate to commit, and the other way round";
    SignersUncounted: "§4.3", "a certificate may have any number of signers";
    SignerRepeated: "§4.3", "one signer may stand in a certificate more than once";
    CommitUnrelayed: "commit relay", "relays send no commit notices";
    CommitNoticeOfOne: "commit relay", "one commit notice is enough";
    AnyoneRelays: "commit relay", "commit notices of replicas that are no relays count";
    RelayedForAnyone: "commit relay", "a commit is relayed for anybody who asks";
    RelayedUnproven: "commit relay", "a commit is relayed for its author without the proof";
    OutcomeUnlogged: "§4.3", "how a transaction ended is not written to the journal";
    OutcomeWithoutTransaction: "§4.3", "it is written without the transaction, where nothing else in the journal has it";
    OutcomeUnvoted: "§5", "a replica that learned the outcome before it voted does not vote for it";
    OutcomeUnrepeated: "§5", "an outcome that was not logged is not logged later";
    JanitorAsleep: "§5", "replicas finish nothing of their own accord";
    HiddenLeft: "§5", "a replica leaves a transaction to its author that stands in the way of those who may not see it";
    WaitingFinished: "§5", "a replica sets out to finish what waits for another transaction there";
    LowWatermarkUnlogged: "orphan resolution", "the low watermark is not written to the journal";
    LowWatermarkIgnored: "orphan resolution", "transactions below the low watermark are judged";
    OrphanReleasedByFew: "orphan resolution", "a transaction never commits when one replica fewer than 3f+1 knows only what is older";
    ReleasedForgotten: "orphan resolution", "a replica that releases an orphan forgets what it said of it";
    QueriesHogged: "orphan resolution", "inquiries without result keep out others";
    OwnVoteForgotten: "orphan resolution", "a replica that asks about an orphan counts itself, though it has voted to commit it";
    VersionTakenFromOne: "orphan resolution", "a newer version that one replica shows is taken over";
    OutcomeTakenFromOne: "orphan resolution", "an outcome that one replica remembers concludes a transaction";
    MissedCommitLeft: "catching up", "a replica does not ask for a transaction that others say has committed";
    CommitTakenFromOne: "catching up", "a commit that one replica states is taken over";
    MissedVersionLeft: "catching up", "a replica takes over no version that it missed";
    PageTakenFromOne: "catching up", "a version that one replica shows is taken over";
    TakenOverUnlogged: "catching up", "a version that is taken over is not written to the journal";
    WrongValueKept: "catching up", "a replica keeps a value that differs from what f+1 others show of the same version";
    WrongValueUnnamed: "catching up", "a value that was wrong is put right and not named";
    MendedUnlogged: "catching up", "a value that is put right is not written to the journal";
    LostWriteUnnamed: "catching up", "a write that a replica lost is taken over and not named";
    CatchUpUnlimited: "catching up", "a replica is served as often as it asks";
    LostBoundUnset: "rebuilding", "a replica that lost its disk takes itself to have said nothing before";
    LostSaidAgain: "rebuilding", "a replica that lost its disk speaks of what it may have spoken of before";
    LostBoundUnlogged: "rebuilding", "up to when it has forgotten what it said is not written down";
    LostBoundShort: "rebuilding", "a replica that lost its disk takes it that it never spoke of what was ahead of its clock of now";
    LostRowsIgnored: "rebuilding", "a replica that gave up rows that it could not read serves as if it had them";
    GivenUpUnmended: "rebuilding", "a replica that gave up rows takes it that they are there where it knows how something ended";
    OlderCopyUnnoticed: "rebuilding", "a replica whose data are an older copy goes on, whatever others know";
    OlderCopyOfOne: "rebuilding", "one other is believed that a replica's data are an older copy";
    FarJournalKept: "rebuilding", "a replica is held to whatever it once told of its journal, though nobody's can have come so far";
    OlderCopyOfMost: "rebuilding", "one that begins its rebuilding anew goes by the most that others tell of what it has forgotten";
    PeerJournalsUnlogged: "rebuilding", "how far others' journals had come is forgotten with the process";
    RebuildSkipped: "rebuilding", "a replica that lost its disk reads and votes at once";
    UndecidedUnasked: "rebuilding", "a replica that lost its disk does not ask for what it may have voted for";
    UndecidedOfOne: "rebuilding", "what one other replica holds undecided is all that a replica that lost its disk asks for";
    UndecidedShownEarly: "rebuilding", "a replica says what it holds undecided while it may still vote for more";
    VotedDownUnshown: "rebuilding", "a replica that lost its disk is not told what others have voted down and logged, and waits for no end of it";
    ReleasedUnshown: "rebuilding", "a replica that lost its disk is not told what others have released of late, and waits for no end of it";
    EndsUnawaited: "rebuilding", "a replica that lost its disk takes part again though what it holds is undecided";
    HeldReleased: "rebuilding", "a replica that lost its disk gives up what it holds, which may be undecided elsewhere";
    RebuiltJudgesAtOnce: "rebuilding", "a replica that was rebuilt judges what lies below versions that others may have and it lacks";
    PageUnsettled: "rebuilding", "a replica that lost its disk goes on though more than f others show something newer";
    TombstoneUnlogged: "orphan resolution", "a replica that only remembers an outcome does not say that it logged it";
    TombstoneStays: "orphan resolution", "a replica that only remembers an outcome does not follow the others to later views";
    ViewUnremembered: "orphan resolution", "a replica that is about to forget a transaction forgets to which view it followed the others";
    TombstoneViewUnlogged: "orphan resolution", "to which view such a replica followed the others is not written to the journal";
    LoggedByOthersIgnored: "§5 (1)", "a replica that has logged nothing does not go by what f+1 have logged";
    LeaderUncalled: "§5 (1)", "nobody calls for a leader";
    ViewPassedQuorum: "§5 (2)", "one replica fewer than 3f+1 brings a view to its end";
    ViewFollowedOfOne: "§5 (2)", "one replica's word is enough to follow it to its view";
    ViewHurried: "§5 (2)", "a view is left as soon as somebody calls for the next";
    UnloggedEntersView: "§5 (2)", "a replica that has logged nothing enters a view with nothing to elect with";
    ViewEntryUnlogged: "§5 (2)", "that a replica entered a view is not written to the journal";
    ElectedQuorum: "§5 (3)", "one replica fewer than 4f+1 elects a leader";
    MinorityDecides: "§5 (3)", "a leader decides what fewer of its electors have logged";
    LeaderUnbound: "§5 (3)", "a leader does not log what it decides";
    MajorityUnasked: "§5 (4)", "a leader may decide what it likes";
    AnyoneLeads: "§5 (4)", "any replica may lead any view";
    LowerViewAdopted: "§5 (4)", "a replica adopts what was decided in a view that it has left";
    DecidedTwice: "§5 (4)", "a replica adopts a second decision in one view";
    LoggedViewsMixed: "§5 (5)", "logged decisions of different views make one certificate";
    OriginUnchecked: "multicast", "a request is taken for that of the client it names, whoever brings it";
    VouchedByFew: "multicast", "one replica's word is enough to vouch for a request";
    VouchesFilled: "multicast", "what clients leave behind takes what room there is for what a replica vouches for";
    SameWantedFirst: "multicast", "what nobody gives a replica it asks for first, each time";
    DueRepeatedInTurn: "multicast, requests", "what is due is vouched for again in its turn, however much else there is";
    VouchesUnrepeated: "multicast", "what a replica vouches for it says to its leader alone";
    UnbelievedAccepted: "multicast", "a replica accepts a list with requests that nobody vouches for";
    OrderedAgain: "multicast", "a replica accepts what a leader orders twice";
    DeliveredTwice: "multicast", "a request that was delivered is delivered again";
    ProcessInUseForgotten: "multicast", "of a client's processes the earliest is forgotten, though it is in use";
    ListUnbounded: "multicast", "a list may be longer than what can be read back";
    StatusUnlimited: "multicast", "a replica is told what it lacks as often as it says how far it is";
    ListUnchecked: "multicast", "a list that was asked for is taken to be what comes";
    AcceptedTwice: "multicast", "a replica accepts two lists for one number in one view";
    AcceptedUnlogged: "multicast", "what a replica accepts is not written to the journal";
    PrepareQuorum: "multicast", "f+1 replicas that accept a list prepare it";
    ProposedAgainIgnored: "multicast", "what a leader proposes again does not count as its vote to one that had accepted it before it was started anew";
    PreparedUnlogged: "multicast", "what a replica has prepared is not written to the journal";
    CommitQuorum: "multicast", "f+1 replicas that have prepared a list decide it";
    DecidedUnlogged: "multicast", "what a replica knows to be decided is not written to the journal";
    DecidedByOne: "multicast", "one replica's word that a list is decided is enough";
    StableQuorum: "multicast, checkpoints", "f votes make a checkpoint stable";
    HeadUnchecked: "multicast, checkpoints", "the head of a state is taken over whatever its digest";
    PageUnchecked: "multicast, checkpoints", "a page of a state is taken over whatever its digest";
    UnaskedAnswers: "multicast, checkpoints", "pages of a state are looked at that nobody was asked for, and asked for anew where they are wrong";
    OldPagesKept: "multicast, checkpoints", "pages of a state that nobody has any more stay with those of the state that is taken over";
    BehindForgotten: "multicast, checkpoints", "a replica that is behind waits anew at each checkpoint before it takes over a state";
    LeaderUnsuspected: "multicast, views", "a leader may take as long as it likes";
    LeftStillActive: "multicast, views", "a replica that has left a view goes on in it";
    LeftUnlogged: "multicast, views", "that a replica has left a view is not written to the journal";
    EnteredUnlogged: "multicast, views", "how a view began is not written to the journal";
    Unjoined: "multicast, views", "a replica does not follow others to their view";
    LeaderGoneUnfollowed: "multicast, views", "a replica stays in a view whose leader has left it, as long as nobody asks for anything";
    JoinedByOne: "multicast, views", "a replica follows any other to its view";
    PreparedUnclaimed: "multicast, views", "a replica that leaves a view does not tell what it prepared";
    AcceptedUnclaimed: "multicast, views", "a replica that leaves a view does not tell what it accepted";
    NewViewQuorum: "multicast, views", "2f replicas are enough to begin a view";
    FreeQuorum: "multicast, views", "a number is free when f+1 have prepared nothing there";
    ContradictionIgnored: "multicast, views", "a view begins with what one replica prepared, whatever others say";
    AcceptedUnasked: "multicast, views", "a view begins with what one replica says that it prepared, though nobody accepted it";
    ViewShownUnasked: "multicast, views", "what a replica said long ago has how a view began sent to it, whoever says it again";
    EarlierViewsForgotten: "multicast, views", "how a view began is forgotten once a later one has begun";
    ViewUnshown: "multicast, views", "who has missed how a view began is not shown it";
    LostVotes: "multicast, lost disks", "a replica that lost its disk takes part at once";
    LostNumbersShort: "multicast, lost disks", "a replica that lost its disk takes part above what others have delivered when it asks";
    LostViewsShort: "multicast, lost disks", "a replica that lost its disk takes part in the view that the others are in";
    LostAskedFew: "multicast, lost disks", "the answers of 2f-1 say where a replica that lost its disk may take part";
    LostAnswerOld: "multicast, lost disks", "an answer to an earlier process counts";
    SnapshotCutUnsaid: "multicast, disk", "what is written after a snapshot that was cut short is taken for a part of it";
    LostForgotten: "multicast, lost disks", "a snapshot does not say that the disk was lost";
    PaddingUnlimited: "multicast, lost disks", "a leader may propose as many empty lists as it likes";
    ReadOverWriteLock: "Augustus, table 2", "a key is read that a pending transaction writes";
    WriteOverReadLock: "Augustus, table 2", "a key is written that a pending transaction has read";
    WriteOverWriteLock: "Augustus, table 2", "a key is written that a pending transaction writes";
    WriteOverRangeLock: "Augustus, table 2", "a key is written in a range that a pending transaction has read";
    RangeOverWriteLock: "Augustus, table 2", "a range is read in which a pending transaction writes a key";
    RangeOverStructuralLock: "Augustus, table 2", "a range is read beside a pending insertion elsewhere on the shard, where structural locks are on all of it";
    StructuralOverRangeLock: "Augustus, table 2", "a key is inserted or deleted beside a pending range elsewhere on the shard, where structural locks are on all of it";
    ComparisonSkipped: "Augustus §3.1", "comparisons are not made";
    RangeComparisonSkipped: "Augustus §3.1", "a range is not compared with what was seen of it";
    LastRowsUncut: "Augustus §3.1", "a range counts as read to its beginning, though its reader came from its end and stopped before";
    RightsUnasked: "Augustus, rights", "a client reads and writes what it has no right to";
    PendingShown: "Augustus, rights", "a pending transaction is shown to those who may not read all it touches";
    AnyoneRuns: "Augustus, authorship", "a client runs transactions in another's name";
    FinishUnproven: "Augustus, authorship", "a transaction that no other shard has voted for is executed for whoever says it is somebody's";
    VoteRetaken: "Augustus §3.3, votes are final", "a transaction that is asked for again is executed again";
    NumberUnchecked: "Augustus §3.3, votes are final", "the vote on a transaction is given for any other of its number";
    UnsettledForgotten: "Augustus §3.3, votes are final", "a commit is forgotten that other shards may still ask for";
    SettledByFew: "Augustus §3.3, votes are final", "a commit is forgotten though not all other shards have stated that they do not need it";
    PendingCalledEnded: "Augustus §3.3, votes are final", "a shard states of a transaction that is pending that it is not";
    UnseenCalledEnded: "Augustus §3.3, votes are final", "a shard states of a transaction that it has not seen that it will not be pending";
    BatchUnlimited: "Augustus §3.4 (b)", "the answers to one client in a batch may be as long together as it likes";
    PendingUnlimited: "Augustus §3.4 (b)", "a client may have anything pending";
    NumbersSpent: "multicast, requests", "a process goes on to number its requests though nothing is answered, further than replicas take them";
    ConflictsUnlimited: "Augustus §3.4 (b)", "the transactions in the way of one client's requests of a batch may be as long together as it likes";
    RoomKept: "Augustus §3.4 (b), beyond the paper", "who leaves its transactions to others may have as many pending as before";
    ShardVoteOfFew: "Augustus §3.3, certificates", "any number of votes is a shard's vote";
    ShardVoterRepeated: "Augustus §3.3, certificates", "a replica's vote counts as often as it stands there";
    VotesOfOther: "Augustus §3.3, certificates", "a certificate may be about another transaction";
    VoteMissing: "Augustus §3.3, certificates", "a transaction commits without the votes of all its shards";
    StrangerVotes: "Augustus §3.3, certificates", "a shard that does not take part aborts a transaction";
    UpdateReleased: "Augustus §3.5.2", "who has written a transaction that changes something ends it without a certificate";
    ReleasedByAnyone: "Augustus §3.5.2", "anybody releases the locks of a transaction that only reads";
    ForgottenRevived: "Augustus §3.3", "a session that was forgotten begins anew when its client settles it, and so votes change";
    SettledUnordered: "Augustus, asked again", "a session is called settled as far as anybody asks who asks again";
    SignatureOfOther: "Augustus, the coordinator", "a replica's signature counts for an answer that it is not of";
    JanitorIdle: "Augustus, what clients leave", "what no client can finish stays pending";
    StateUnbounded: "Augustus, checkpoints", "a shard takes new keys though the head of its next checkpoint could not be read";
    FirstLeftAgain: "Augustus, what clients leave", "replicas begin each time with what was left first, though it cannot be finished";
    SettledByAllOnly: "Augustus, what clients leave", "nothing is settled while one shard does not answer, though others need nothing of it";
    QueryQuorum: "Augustus, reads in one step", "f+1 equal answers from states as they are count";
    QueryUnprepared: "Augustus, reads in one step", "a replica answers from its state though it has prepared what is not delivered";
    QueryOverLocks: "Augustus, reads in one step", "what a pending transaction holds locked is read in one step";
    ReaderUnknown: "Augustus, reads in one step", "a process that only reads is unknown to its shards, however long it does";
    AnswersUnlimited: "Augustus, reads in one step", "all questions that wait are answered in one turn";
    LostAnswers: "Augustus, reads in one step", "a replica that lost its disk answers from its state before it takes part again";
    MomentMoves: "Augustus, moments", "a moment shows of a key what it was before its last change, and not before its first one since";
    MomentOfAnyone: "Augustus, moments", "a moment is shown to any client, whatever it may read";
    MomentPagesOfFew: "Augustus, moments", "a client believes a page of a moment of any number of replicas";
    MomentsUnlimited: "Augustus, moments", "what was changed since a moment is kept, however much it is";
    AnswerOfFew: "Augustus §3.3, third step", "a client believes a shard's verdict of any number of replicas";
    ScrubSkipped: "Augustus, checkpoints", "what no transaction changes is never hashed again";
    WrongPageKept: "Augustus, checkpoints", "a replica that finds a part of its state wrong goes on with it";
    WrongStateUnnamed: "Augustus, checkpoints", "a state that was wrong is taken over anew and not named";
    PieceUnchecked: "Augustus, state transfer", "a piece of a checkpoint is taken as it comes";
    DurablePageOverwritten: "Augustus, checkpoints", "a checkpoint is written over the pages of the durable one";
    ZabQuorum: "Zab", "one server fewer than a majority is enough";
    PromiseUnlogged: "Zab, discovery", "which epoch was promised is not written to the journal";
    LowerEpochPromised: "Zab, discovery", "an epoch is promised that is not above all that were promised before";
    UnpromisedObeyed: "Zab, discovery", "a leader is obeyed whose epoch was not promised to it";
    NewerFollowerLeft: "Zab, discovery", "a leader begins its epoch with a history older than a follower's";
    OlderLeaderObeyed: "Zab, synchronization", "a follower gives up a newer history for that of a leader whom no majority has accepted";
    AcceptedEarly: "Zab, synchronization", "a follower accepts an epoch before it has all that this begins with";
    EpochUnlogged: "Zab, synchronization", "which epoch was accepted is not written to the journal";
    TruncationSkipped: "Zab, synchronization", "a follower keeps what its leader does not have";
    TruncationUnlogged: "Zab, synchronization", "that the log was truncated is not written to the journal";
    DivergedAppended: "Zab, broadcast", "a follower appends to a log that is not known to be a prefix of its leader's";
    EntryUnlogged: "Zab, broadcast", "an entry is acknowledged without being written to the journal";
    LonelyLeader: "Zab, broadcast", "a leader that hears of no majority goes on";
    DeposedByObserver: "Zab, observers", "a leader gives up because an observer obeys another";
    FoundedByMajority: "Zab, lost disks", "a majority of servers with empty disks begins anew";
    IncarnationIgnored: "Zab, lost disks", "a server that began with an empty disk counts as what it was before";
    JoinedAtOnce: "Zab, lost disks", "a server that joins counts before it knows that it does";
    ApplyBelieved: "digests", "what says that it applied a transaction is believed, though the digest after it was not compared";
    PreparedBelieved: "digests", "what a transaction was hashed to when it was prepared is believed when it is applied, whatever checksum it has by then";
    SessionUnscrubbed: "digests", "a session is never hashed again";
    SnapshotUnsummed: "digests", "a snapshot is written of nodes and sessions that do not add up to the digest, which nobody can read";
    UnendingSession: "digests", "a session that cannot end, as one of its ephemeral nodes is not there, is tried again for ever";
    ReadUnseen: "digests", "a node is read, or a request refused for what it is, without a look at whether it is as transactions made it";
    SaidBeforeMajority: "an ensemble's server", "clients are told of what a majority does not have";
    OtherDigestAcknowledged: "an ensemble's server", "an entry is acknowledged that makes another digest than was foreseen";
    MinorityDeposes: "an ensemble's server", "a leader with which one follower disagrees gives up";
    ForwardsWithGaps: "an ensemble's server", "a leader takes a follower's request though one before it is missing";
    TakenBackKept: "an ensemble's server", "a state keeps what was taken back from its log";
    HeardIgnored: "an ensemble's server, sessions", "a leader ends sessions that followers heard of in time";
    MovedSessionObeyed: "an ensemble's server, sessions", "a leader takes a session's requests from a server that the session has left";
    PasswordUnchecked: "an ensemble's server, sessions", "any password resumes a session";
    StaleServerTaken: "an ensemble's server, sessions", "a client comes to a server that has seen less than it";
    ReadsOvertake: "an ensemble's server, sessions", "a follower answers a read before the writes that were asked before it";
    SyncUnordered: "an ensemble's server, sync", "a leader answers a sync as of its state, though another may lead by now";
    MissedUntold: "an ensemble's server, watches", "who comes back with its watches is not told what it missed";
    UncomparedServes: "an ensemble's server, repair", "a server that was repaired serves before it is compared with a majority";
    TakerCountsItself: "an ensemble's server, repair", "whoever took its state over counts itself among those that have it";
    InstalledCountsItself: "an ensemble's server, repair", "whoever reread its disk and then took the leader's snapshot counts itself beside the leader";
    QuarantinedReopens: "an ensemble's server, repair", "a server that is quarantined begins anew from its disk outside of a repair";
    NeededLogGivenUp: "an ensemble's server, repair", "a server gives up its log though nobody leads without it";
    AskerCounted: "an ensemble's server, repair", "a leader counts the server that asks whether it is needed";
    RefusedKept: "an ensemble's server, repair", "an outvoted leader keeps what a majority refuses";
    RereadAgain: "an ensemble's server, repair", "a server that is found wrong before it was compared reads the same disk again";
    GivenUpFounds: "an ensemble's server, repair", "a server that gave up its log takes part in beginning anew";
    ReadUnsettled: "Sentinel's transactions", "a leader answers what only reads as of its state, though another may lead by now";
    SeenUnchecked: "Sentinel's transactions", "a transaction commits though what it read has changed";
    RangeUnchecked: "Sentinel's transactions", "a transaction commits though its range has a key that it did not see";
    LastKeysUncut: "Sentinel's transactions", "a range counts as read to its beginning, though its reader came from its end and stopped before";
    CommittedAgain: "Sentinel's transactions", "a commit that is asked for again takes place again";
    ConflictUnnoted: "Sentinel's transactions", "that a commit was turned down is not noted, and whoever asks for it again may commit";
    UnknownTakenForUndone: "Sentinel's transactions", "a commit that may have taken place in a session that is gone is asked for again in another";
    SignatureUnchecked: "signatures", "no signature is checked";
    BatchUnweighed: "signatures", "signatures checked together may make up for one another";
    PathUnchecked: "signatures", "a batch signature covers whatever it is shown with";
    RootCachedUnchecked: "signatures", "a root is remembered as good before its signature was checked";
    RootOfAnyone: "signatures", "a root known to be good is good whoever is said to have signed it";
    RootSignedAnyhow: "signatures", "a root known to be good is good whatever signature stands beside it";
    ClusterUnnamed: "signatures", "what is signed and hashed does not name the cluster";
    SaidBeforeDurable: "the turn", "what a turn says leaves before its write, which may wait as a silent turn's does";
    OldestSegmentUnmissed: "the store", "a journal whose oldest segments are gone is replayed from what is left";
    SyncSkipped: "the store", "what is written is not synced";
    ReplaySkipped: "the store", "a replica that comes back reads no journal";
    SegmentsUnbounded: "the store", "the segments of the journal grow in number while there is too little for a checkpoint";
    ReleasedUnflushed: "the store", "segments of the journal are released before what they hold is in the base table";
    LateCheckpointWins: "the store", "a late version overwrites a newer one in the base table";
    KeptWithoutLate: "the store", "a moment that is kept lacks what was committed late";
    OlderRunWins: "the store", "of two runs of the base table that have a key, the older one's row is kept";
    RunsUnbounded: "the store", "a checkpoint adds its run however many runs wait to be merged";
    ReadRunFreed: "the store", "what was merged is given back to the disk while somebody reads it";
    MergePanicUntold: "the store", "nobody is told that merging has panicked";
    LateTaken: "the store", "a version committed late is taken for the newest though the base was not asked";
    RowStillKnown: "the store", "what was written anew is taken for all there is though the base table has an older row";
    UnflushedEvicted: "the store", "versions are evicted that no checkpoint has written to the base table";
}

/// Whether this thread is to break the rule.
#[cfg(not(feature = "enabled"))]
#[inline]
#[must_use]
pub const fn broken(_rule: Mutant) -> bool {
    false
}

/// Whether this thread is to break the rule.
#[cfg(feature = "enabled")]
#[inline]
#[must_use]
pub fn broken(rule: Mutant) -> bool {
    switch::is(rule)
}

#[cfg(feature = "enabled")]
pub use switch::{VARIABLE, breaking};

#[cfg(feature = "enabled")]
mod switch {
    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Mutant;

    /// The variable of the environment that names the rule which a whole process breaks: for tests, which have no other way
    /// to be told.
    pub const VARIABLE: &str = "BEZANT_MUTANT";

    /// True once it is known that the environment names no rule, until some thread breaks one. So a process in which nothing
    /// is broken pays one load a question, and can be measured.
    static WHOLE: AtomicBool = AtomicBool::new(false);

    thread_local! {
        static BROKEN: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    static BROKEN_EVERYWHERE: LazyLock<Option<Mutant>> = LazyLock::new(|| {
        let named = named();
        WHOLE.store(named.is_none(), Ordering::Relaxed);
        named
    });

    #[inline]
    pub(super) fn is(rule: Mutant) -> bool {
        !WHOLE.load(Ordering::Relaxed) && is_named(rule)
    }

    #[cold]
    fn is_named(rule: Mutant) -> bool {
        *BROKEN_EVERYWHERE == Some(rule) || BROKEN.get() == Some(rule)
    }

    #[expect(clippy::disallowed_methods, reason = "in these builds only: a test has no other way to be told")]
    fn named() -> Option<Mutant> {
        let name = std::env::var(VARIABLE).ok()?;
        let mutant = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
        Some(*mutant.unwrap_or_else(|| panic!("{VARIABLE} names no mutant: `{name}`")))
    }

    /// Whole again when it goes, also when what ran has panicked.
    struct Broken;

    impl Drop for Broken {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }

    /// Does `run` with one rule broken, on this thread and no other.
    pub fn breaking<T>(rule: Mutant, run: impl FnOnce() -> T) -> T {
        let _broken = Broken;
        // The environment is read before, as reading it may say that nothing is broken.
        LazyLock::force(&BROKEN_EVERYWHERE);
        WHOLE.store(false, Ordering::Relaxed);
        BROKEN.set(Some(rule));
        run()
    }

    #[cfg(test)]
    mod tests {
        use super::super::broken;
        use super::*;

        #[test]
        fn one_rule_is_broken_for_as_long_as_the_run_takes() {
            assert!(Mutant::ALL.iter().all(|mutant| !broken(*mutant)));
            let inside = breaking(Mutant::VoteUnlogged, || Mutant::ALL.iter().filter(|mutant| broken(**mutant)).count());
            assert_eq!(inside, 1);
            let panicked = std::panic::catch_unwind(|| breaking(Mutant::VoteUnlogged, || panic!("as a run may")));
            assert!(panicked.is_err() && !broken(Mutant::VoteUnlogged));
        }
    }
}
