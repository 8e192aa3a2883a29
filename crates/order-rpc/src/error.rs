//! Errors of the configuration and of the start.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use thiserror::Error;

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its bounds.
    #[error("{field} is {value}, must be between {min} and {max}")]
    OutOfBounds {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be.
        max: usize,
    },
    /// A limit is too small for what another one admits.
    #[error("{field} is {value}, must be at least {least} while {for_field} is {for_value}")]
    TooSmall {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        least: usize,
        /// The setting that needs it.
        for_field: &'static str,
        /// Its value.
        for_value: usize,
    },
    /// A proxy whose requests are those of the callers that it names, and a front's at once.
    #[error("{address} is in trusted_proxies and in trusted_fronts, must be in one")]
    ProxyAndFront {
        /// The address.
        address: IpAddr,
    },
    /// A timeout of zero.
    #[error("{field} is 0, must be above 0")]
    ZeroTime {
        /// The setting.
        field: &'static str,
    },
}

/// Why the RPC server could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The runtime or a thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
