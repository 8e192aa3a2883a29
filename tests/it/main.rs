//! The facade's parts together, on the mock node. Tests that need a process of their own are beside this folder.

mod admission;
mod end_to_end;
mod rpc;
