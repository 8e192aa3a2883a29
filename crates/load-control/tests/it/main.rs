//! The parts from outside.

mod gate;
