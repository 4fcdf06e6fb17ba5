//! Buzzer on whole clusters. One program for all of them: it is linked once, and they run side by side.

mod augustus;
mod basil;
mod place;
