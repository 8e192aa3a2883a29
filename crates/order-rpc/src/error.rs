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
    /// A number is outside its bounds.
    #[error("{field} is {value}, must be between {min} and {max}")]
    OutOfBounds {
        /// The name of the option.
        field: &'static str,
        /// The configured value.
        value: usize,
        /// The lowest permitted value.
        min: usize,
        /// The highest permitted value.
        max: usize,
    },
    /// A limit is too small for what another limit admits.
    #[error("{field} is {value}, must be at least {least} while {for_field} is {for_value}")]
    TooSmall {
        /// The name of the option that is too small.
        field: &'static str,
        /// The configured value.
        value: usize,
        /// The lowest value that fits the other option.
        least: usize,
        /// The name of the other option.
        for_field: &'static str,
        /// The value of the other option.
        for_value: usize,
    },
    /// An address is listed both as a proxy, whose requests belong to the callers that it names,
    /// and as a front, whose requests are its own.
    #[error("{address} is in trusted_proxies and in trusted_fronts, must be in one")]
    ProxyAndFront {
        /// The address that is in both lists.
        address: IpAddr,
    },
    /// A timeout is zero.
    #[error("{field} is 0, must be above 0")]
    ZeroTime {
        /// The name of the option.
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
    /// The server cannot listen on the configured address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The runtime or a thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
