//! A disk over another one: it changes some operations and forwards the others.
//!
//! A [`DiskLayer`] changes operations of the disk, a [`FileLayer`] those of one open file. A layer
//! that does not define an operation leaves it as it is. Tests and stepped nodes need disks that
//! fail, are full, or record what is written to them.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::disk::{Access, Beside, Disk, DiskFile, Locking};

/// Operations of a disk that differ from those of the disk `below`.
pub trait DiskLayer: fmt::Debug + Send + Sync {
    /// See [`Disk::open`].
    ///
    /// # Errors
    /// See [`Disk::open`].
    fn open(&self, below: &dyn Disk, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        below.open(path, access)
    }

    /// See [`Disk::rename`].
    ///
    /// # Errors
    /// See [`Disk::rename`].
    fn rename(&self, below: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
        below.rename(from, to)
    }

    /// See [`Disk::available`].
    ///
    /// # Errors
    /// See [`Disk::available`].
    fn available(&self, below: &dyn Disk, directory: &Path) -> io::Result<u64> {
        below.available(directory)
    }
}

/// A disk with a layer over it.
#[derive(Debug)]
pub struct LayeredDisk<L> {
    layer: L,
    below: Arc<dyn Disk>,
}

impl<L: DiskLayer> LayeredDisk<L> {
    /// Puts a layer over a disk.
    pub fn new(layer: L, below: Arc<dyn Disk>) -> LayeredDisk<L> {
        LayeredDisk { layer, below }
    }
}

impl<L: DiskLayer> Disk for LayeredDisk<L> {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.below.create_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.below.list(directory)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.below.sync_directory(path)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        self.layer.open(&*self.below, path, access)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.below.read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.layer.rename(&*self.below, from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.below.remove(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        self.below.lock(path)
    }

    fn available(&self, directory: &Path) -> io::Result<u64> {
        self.layer.available(&*self.below, directory)
    }

    fn make_private(&self, directory: &Path) -> io::Result<usize> {
        self.below.make_private(directory)
    }

    fn beside(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) -> io::Result<Beside> {
        self.below.beside(name, work)
    }
}

/// Operations of an open file that differ from those of the file `below`.
pub trait FileLayer: fmt::Debug + Send + Sync {
    /// See [`DiskFile::write_all_at`].
    ///
    /// # Errors
    /// See [`DiskFile::write_all_at`].
    fn write_all_at(&self, below: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
        below.write_all_at(bytes, offset)
    }

    /// See [`DiskFile::sync_data`].
    ///
    /// # Errors
    /// See [`DiskFile::sync_data`].
    fn sync_data(&self, below: &dyn DiskFile) -> io::Result<()> {
        below.sync_data()
    }

    /// See [`DiskFile::sync_all`].
    ///
    /// # Errors
    /// See [`DiskFile::sync_all`].
    fn sync_all(&self, below: &dyn DiskFile) -> io::Result<()> {
        below.sync_all()
    }
}

/// An open file with a layer over it.
#[derive(Debug)]
pub struct LayeredFile<L> {
    layer: L,
    below: Box<dyn DiskFile>,
}

impl<L: FileLayer + 'static> LayeredFile<L> {
    /// Puts a layer over an open file.
    pub fn boxed(layer: L, below: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(LayeredFile { layer, below })
    }
}

impl<L: FileLayer> DiskFile for LayeredFile<L> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.below.read_at(bytes, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.layer.write_all_at(&*self.below, bytes, offset)
    }

    fn length(&self) -> io::Result<u64> {
        self.below.length()
    }

    fn set_length(&self, bytes: u64) -> io::Result<()> {
        self.below.set_length(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.layer.sync_data(&*self.below)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.layer.sync_all(&*self.below)
    }
}
