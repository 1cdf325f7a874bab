//! The HDF5 library that called this plugin. Wheels rename their copy of it, and one process may have several, so each
//! is found by an address in it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

use crate::abi::{CLASS_VERSION, Class, Head, Id, UNDEFINED};

/// Frames between this module and the library. A panic hook or a logger adds some.
const MOST_FRAMES: usize = 64;
const DEFAULT_STACK: Id = 0;
const MOST_KEY_BYTES: usize = 4096;

type Push =
    unsafe extern "C" fn(Id, *const c_char, *const c_char, c_uint, Id, Id, Id, *const c_char, ...) -> c_int;

/// A loaded HDF5 library. It stays loaded.
pub struct Library {
    /// Address at which it is loaded.
    base: usize,
    handle: *mut c_void,
    push: Push,
    plain: OnceLock<Class>,
}

// SAFETY: the handle is only passed to `dlsym`, which any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// An operation that failed, as HDF5 classifies it.
#[derive(Clone, Copy)]
pub enum Step {
    Open,
    Close,
    Read,
    Write,
    Sync,
    Delete,
}

impl Step {
    /// Names of the variables with the major and the minor number of its errors.
    fn numbers(self) -> (&'static CStr, &'static CStr) {
        match self {
            Self::Open => (c"H5E_FILE_g", c"H5E_CANTOPENFILE_g"),
            Self::Close => (c"H5E_IO_g", c"H5E_CANTCLOSEFILE_g"),
            Self::Read => (c"H5E_IO_g", c"H5E_READERROR_g"),
            Self::Write => (c"H5E_IO_g", c"H5E_WRITEERROR_g"),
            Self::Sync => (c"H5E_IO_g", c"H5E_CANTFLUSH_g"),
            Self::Delete => (c"H5E_FILE_g", c"H5E_CANTDELETEFILE_g"),
        }
    }
}

impl Library {
    /// The library whose call this thread is in; `None` if no library on the stack is HDF5.
    pub fn calling() -> Option<&'static Self> {
        static KNOWN: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());
        let mut frames = [std::ptr::null_mut(); MOST_FRAMES];
        // SAFETY: the array has room for this many frames.
        let count = unsafe { libc::backtrace(frames.as_mut_ptr(), MOST_FRAMES as c_int) };
        let own = module_of(Self::calling as *const c_void)?.0;
        let callers = frames.iter().take(count as usize).filter_map(|&frame| module_of(frame));
        let mut last = own;
        for (base, file) in callers {
            if base == own || base == last {
                continue;
            }
            last = base;
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = known.iter().find(|library| library.base == base) {
                return Some(found);
            }
            if let Some(opened) = Self::open(base, file) {
                let kept: &'static Self = Box::leak(Box::new(opened));
                known.push(kept);
                return Some(kept);
            }
        }
        None
    }

    /// The library at an address, if it is HDF5.
    fn open(base: usize, file: &CStr) -> Option<Self> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the file is loaded, so this loads and initialises nothing.
        let found = unsafe { libc::dlopen(file.as_ptr(), flags) };
        // A program that contains HDF5 is named as it was called.
        // SAFETY: a null name is that of the program.
        let handle = if found.is_null() { unsafe { libc::dlopen(std::ptr::null(), flags) } } else { found };
        let push = symbol(handle, c"H5Epush2")?;
        (module_of(push)?.0 == base).then(|| {
            // SAFETY: this is the signature of H5Epush2 in every version.
            let push = unsafe { std::mem::transmute::<*const c_void, Push>(push) };
            Self { base, handle, push, plain: OnceLock::new() }
        })
    }

    /// A variable of the library with an identifier.
    fn id(&self, name: &CStr) -> Id {
        // SAFETY: the variables that this module names have the type of identifiers.
        symbol(self.handle, name).map_or(-1, |variable| unsafe { *variable.cast::<Id>() })
    }

    /// Adds an error to the library's stack of this thread, with an error number as its own drivers write it.
    pub fn push(&self, step: Step, errno: i32, message: &str) {
        let system = std::io::Error::from_raw_os_error(errno).to_string();
        let system = system.split(" (os error").next().unwrap_or_default();
        let text = format!("{message}: errno = {errno}, error message = '{system}'");
        let Ok(text) = CString::new(text.replace('\0', " ")) else { return };
        let (major, minor) = step.numbers();
        let (class, major, minor) = (self.id(c"H5E_ERR_CLS_g"), self.id(major), self.id(minor));
        let file = c"outcore";
        // SAFETY: the strings live during the call, and the format takes one of them.
        unsafe {
            (self.push)(
                DEFAULT_STACK,
                file.as_ptr(),
                file.as_ptr(),
                0,
                class,
                major,
                minor,
                c"%s".as_ptr(),
                text.as_ptr(),
            )
        };
    }

    /// The configuration of the driver in a file access property list: the file of a key.
    pub fn configured_key(&self, access: Id) -> Option<String> {
        type Get = unsafe extern "C" fn(Id, *mut c_char, usize) -> isize;
        let get = symbol(self.handle, c"H5Pget_driver_config_str")?;
        // SAFETY: this is the signature of the public function.
        let get = unsafe { std::mem::transmute::<*const c_void, Get>(get) };
        let mut bytes = vec![0_u8; MOST_KEY_BYTES];
        // SAFETY: the buffer has room for this many bytes, with a zero at the end.
        let count = unsafe { get(access, bytes.as_mut_ptr().cast(), bytes.len()) };
        let count = usize::try_from(count).ok().filter(|count| (1..MOST_KEY_BYTES).contains(count))?;
        bytes.truncate(count);
        String::from_utf8(bytes).ok()
    }

    /// The library's driver for files of the file system, named "sec2".
    ///
    /// # Errors
    ///
    /// If the library does not reveal it.
    pub fn plain(&'static self) -> Result<&'static Class> {
        if let Some(class) = self.plain.get() {
            return Ok(class);
        }
        let found = self.find_plain().filter(|class| class.version == CLASS_VERSION).ok_or_else(|| {
            Error::new(
                ErrorKind::Io,
                "need HDF5 1.14.2 to 2.2, have a library without its default driver; unset HDF5_DRIVER",
            )
        })?;
        Ok(self.plain.get_or_init(|| found))
    }

    /// Opens a file that always exists with the driver, because only an open file reveals its class.
    fn find_plain(&self) -> Option<Class> {
        type Create = unsafe extern "C" fn(Id) -> Id;
        type Change = unsafe extern "C" fn(Id) -> c_int;
        type Open = unsafe extern "C" fn(*const c_char, c_uint, Id, u64) -> *mut Head;
        type Close = unsafe extern "C" fn(*mut Head) -> c_int;
        let function = |name| symbol(self.handle, name);
        // SAFETY: these are the signatures of the public functions.
        let (create, select, release, open, close) = unsafe {
            (
                std::mem::transmute::<*const c_void, Create>(function(c"H5Pcreate")?),
                std::mem::transmute::<*const c_void, Change>(function(c"H5Pset_fapl_sec2")?),
                std::mem::transmute::<*const c_void, Change>(function(c"H5Pclose")?),
                std::mem::transmute::<*const c_void, Open>(function(c"H5FDopen")?),
                std::mem::transmute::<*const c_void, Close>(function(c"H5FDclose")?),
            )
        };
        // SAFETY: the library may be called again from a callback, and each call gets the arguments that it documents.
        unsafe {
            let access = create(self.id(c"H5P_CLS_FILE_ACCESS_ID_g"));
            if access < 0 {
                return None;
            }
            let is_selected = select(access) >= 0;
            let file = if is_selected {
                open(c"/dev/null".as_ptr(), 0, access, UNDEFINED)
            } else {
                std::ptr::null_mut()
            };
            let class = file.as_ref().and_then(|head| head.class.as_ref()).copied();
            if !file.is_null() {
                close(file);
            }
            release(access);
            class
        }
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*const c_void> {
    // SAFETY: the handle is null or from `dlopen`, and never closed.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

/// Start and file name of the loaded module with an address.
fn module_of(address: *const c_void) -> Option<(usize, &'static CStr)> {
    // SAFETY: all zeros are a valid value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be looked up.
    let is_found = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    if !is_found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name belongs to the loaded module, which stays loaded while it is on the stack.
    Some((info.dli_fbase as usize, unsafe { CStr::from_ptr(info.dli_fname) }))
}
