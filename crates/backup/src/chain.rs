//! A backup of all rows, and those after it of what has changed: read together, as the last of them says the database was.

use std::path::{Path, PathBuf};

use types::{Key, Value};

use crate::content::Content;
use crate::file::{FileReader, Header, Row};
use crate::{Error, Summary};

/// What to do where files do not follow one another.
const IN_ORDER: &str = "name all of them, in order: the oldest first";

/// Some files: one of all rows, and each other of what had changed since the one before.
#[derive(Debug)]
pub struct Chain {
    files: Vec<(FileReader, Option<Row>)>,
    content: Content,
    /// How many rows of the last file were read.
    rows_written: u64,
}

impl Chain {
    /// Opens the files, the oldest first.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Damaged`]; [`Error::Chain`] where one does not say that it goes on from the one before.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        if paths.is_empty() {
            return Err(Error::Chain("no backup is named".to_owned()));
        }
        let mut files: Vec<(FileReader, Option<Row>)> = Vec::new();
        for (at, path) in paths.iter().enumerate() {
            let reader = FileReader::open(path)?;
            let before = at.checked_sub(1).map(|at| &paths[at]);
            match (&reader.header().since, before) {
                (None, None) => {}
                (Some(since), Some(before)) if *since == content_of(before)? => {}
                (None, Some(before)) => {
                    return Err(Error::Chain(format!(
                        "{} holds all rows, and does not go on from {}; {IN_ORDER}",
                        path.display(),
                        before.display()
                    )));
                }
                (Some(_), None) if paths.len() > 1 => {
                    return Err(Error::Chain(format!(
                        "{} is named first, and holds only what had changed since another; {IN_ORDER}",
                        path.display()
                    )));
                }
                (Some(_), None) => {
                    return Err(Error::Chain(format!("{} holds only what had changed: name the backups before it, too", path.display())));
                }
                (Some(_), Some(before)) => {
                    return Err(Error::Chain(format!(
                        "{} does not go on from {}, but from another; {IN_ORDER}",
                        path.display(),
                        before.display()
                    )));
                }
            }
            if let (Some((last, _)), Some(before)) = (files.last(), before) {
                last.header().check_next(reader.header(), &format!("{} follows {}", path.display(), before.display()))?;
            }
            files.push((reader, None));
        }
        for (reader, row) in &mut files {
            *row = reader.next_row()?;
        }
        Ok(Self { files, content: Content::default(), rows_written: 0 })
    }

    /// What the last file says at its beginning.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.files.last().expect("there is one").0.header()
    }

    /// The next row that the database held; nothing after the last, when all files were found whole.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Damaged`].
    pub fn next_row(&mut self) -> Result<Option<(Key, Value)>, Error> {
        loop {
            let Some(key) = self.files.iter().filter_map(|(_, row)| row.as_ref().map(|(key, _)| key)).min().cloned() else {
                self.check_content()?;
                return Ok(None);
            };
            // The last file that knows the key is right.
            let mut value = None;
            let last = self.files.len() - 1;
            for (at, (reader, row)) in self.files.iter_mut().enumerate() {
                if row.as_ref().is_some_and(|(other, _)| *other == key) {
                    value = row.take().and_then(|(_, value)| value);
                    *row = reader.next_row()?;
                    self.rows_written += u64::from(at == last);
                }
            }
            if let Some(value) = value {
                self.content.add(&key, &value);
                return Ok(Some((key, value)));
            }
        }
    }

    /// Reads all that is left, and says what it was.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Damaged`].
    pub fn finish(mut self) -> Result<Summary, Error> {
        while self.next_row()?.is_some() {}
        let (as_of, rows_written) = (self.header().as_of, self.rows_written);
        Ok(Summary { as_of, rows: self.content.rows(), rows_written, content: self.content.digest() })
    }

    fn check_content(&self) -> Result<(), Error> {
        let (reader, _) = self.files.last().expect("there is one");
        let end = reader.end().expect("all rows are read");
        if end.rows_of_all != self.content.rows() || end.content != self.content.clone().digest() {
            return Err(reader.damaged("together, the files hold other rows than were there"));
        }
        Ok(())
    }
}

/// The content digest that a file ends with.
fn content_of(path: &Path) -> Result<String, Error> {
    let mut reader = FileReader::open(path)?;
    while reader.next_row()?.is_some() {}
    Ok(reader.end().expect("all rows are read").content.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Writer;

    /// Two files of a cluster with one row, of which the second says that it is of `cluster` and of the time `as_of`.
    fn files(folder: &Path, cluster: &str, as_of: u64) -> Vec<PathBuf> {
        let row = (Key::from("a"), Value::from("1"));
        let mut content = Content::default();
        content.add(&row.0, &row.1);
        let digest = content.digest();
        let mut paths = Vec::new();
        for (at, header) in [
            Header { cluster: "c".to_owned(), as_of: 7, since: None },
            Header { cluster: cluster.to_owned(), as_of, since: Some(digest.clone()) },
        ]
        .into_iter()
        .enumerate()
        {
            let path = folder.join(at.to_string());
            let mut writer = Writer::new(&path, &header).expect("a file");
            if at == 0 {
                writer.add(&row.0, Some(&row.1)).expect("room");
            }
            writer.end(1, digest.clone()).expect("room");
            paths.push(path);
        }
        paths
    }

    fn two(cluster: &str, as_of: u64) -> Result<Summary, Error> {
        let folder = tempfile::tempdir().expect("a folder");
        Chain::open(&files(folder.path(), cluster, as_of))?.finish()
    }

    fn said(refused: Result<Summary, Error>) -> String {
        match refused {
            Err(Error::Chain(said)) => said,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_names_the_files_in_another_order_is_told_the_right_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = files(folder.path(), "c", 8);
        let (all, change) = (&paths[0], &paths[1]);
        let checked = |paths: &[&PathBuf]| {
            let paths: Vec<PathBuf> = paths.iter().map(|path| (*path).clone()).collect();
            said(Chain::open(&paths).and_then(Chain::finish))
        };
        for wrong in [&[change, all][..], &[all, all], &[all, change, all]] {
            assert!(checked(wrong).ends_with(IN_ORDER), "{}", checked(wrong));
        }
        assert!(checked(&[change]).contains("name the backups before it"));
    }

    #[test]
    fn the_files_of_a_chain_are_of_one_cluster_and_of_one_time_after_another() {
        let whole = two("c", 8).expect("they follow one another");
        assert_eq!((whole.as_of, whole.rows, whole.rows_written), (8, 1, 0));
        assert!(said(two("d", 8)).ends_with("of another cluster"));
        for as_of in [6, 7] {
            assert!(said(two("c", as_of)).ends_with("is not of a later time"));
        }
    }
}
