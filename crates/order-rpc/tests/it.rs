//! The server from outside. Tests that need a process of their own are beside this file.

mod common;

mod it {
    mod admission;
    mod attack;
    mod bad_input;
    mod burst;
    mod front;
    mod hostile;
    mod limits;
    mod orders;
    mod private;
    mod shares;
}
