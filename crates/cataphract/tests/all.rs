//! Many transactions rebuilt as one, stepped by tests. One program for all of them: it is linked once, and they run side by side.

mod harness;
mod one_after_another;
mod scripts;
