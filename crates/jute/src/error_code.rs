//! The error codes of replies.

macro_rules! codes {
    ($($(#[doc = $text:literal])* $name:ident = $code:literal,)*) => {
        /// Why a request was refused. The numbers are ZooKeeper's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(i32)]
        pub enum ErrorCode {
            $($(#[doc = $text])* #[error("{}", stringify!($name))] $name = $code,)*
        }

        impl ErrorCode {
            /// The code with this number, if there is one.
            #[must_use]
            pub fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The server failed.
    SystemError = -1,
    /// An operation of a multi was not tried, because another failed.
    RuntimeInconsistency = -2,
    /// The server found its own state to be wrong.
    DataInconsistency = -3,
    /// The connection was lost.
    ConnectionLoss = -4,
    /// The request could not be read, or is too large.
    MarshallingError = -5,
    /// There is no such operation here.
    Unimplemented = -6,
    /// It took too long.
    OperationTimeout = -7,
    /// An argument makes no sense.
    BadArguments = -8,
    /// No node has this path.
    NoNode = -101,
    /// The ACL allows no such thing.
    NoAuth = -102,
    /// The node has another version than the one asked for.
    BadVersion = -103,
    /// Ephemeral nodes have no children.
    NoChildrenForEphemerals = -108,
    /// A node has this path already.
    NodeExists = -110,
    /// The node has children.
    NotEmpty = -111,
    /// The session is no more.
    SessionExpired = -112,
    /// The ACL makes no sense.
    InvalidAcl = -114,
    /// Authentication failed.
    AuthFailed = -115,
    /// The session is at another server now.
    SessionMoved = -118,
    /// The client watches nothing of this kind there.
    NoWatcher = -121,
    /// Members cannot be changed by clients.
    ReconfigDisabled = -123,
    /// A limit would be exceeded.
    QuotaExceeded = -125,
}

impl ErrorCode {
    /// The code's number.
    #[must_use]
    pub fn number(self) -> i32 {
        self as i32
    }
}
