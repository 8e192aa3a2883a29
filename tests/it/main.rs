//! The facade's parts together, on the mock node. Tests that need a process of their own are beside this folder.

mod admission;
mod bad_peers;
mod deferral;
mod end_to_end;
mod faults;
mod full;
mod heads;
mod hostile_node;
mod in_process;
mod overload;
mod rpc;
mod send;
mod sink;
mod stream;
mod websocket;
