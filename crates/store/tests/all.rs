//! Stores on disks, real and simulated. One program for all of them: it is linked once, and they run side by side.

mod disk;
mod journal;
mod model;
mod pace;
mod ranges;
