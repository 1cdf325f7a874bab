//! Arrays of a pool: boxes of elements.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use outcore_client::{ArrayFile, Memory, MemoryUse, Ticket};
use outcore_core::{
    BoxRequest, ChunkGrid, ChunkOrder, Error, ErrorKind, GridSpec, Hints, Operation, Result, StorageOrder,
    Volume,
};
use outcore_memory::{Arena, Region};

use crate::boundary::{Handle, call, count, hand_out, release};
use crate::context::Context;
use crate::memory::block_of;
use crate::pool::{Client, Pool};
use crate::request::{Request, started};
use crate::text::{numbers_of, text_of};
use crate::zarr::{ElementType, Metadata, marked, state_of};

/// Memory of an open array for parts of requests that are not aligned.
const BOUNCE_BYTES: usize = 16 << 20;
/// Counts openings that wrote.
const GENERATION: &str = "outcore.generation";

/// An array of a pool that is open.
pub struct Array {
    context: Arc<Context>,
    pub(crate) client: Arc<Client>,
    pub(crate) path: String,
    pub(crate) element: ElementType,
    pub(crate) file: Arc<ArrayFile>,
    writable: bool,
    /// Whether the generation counts the writes through this handle.
    counted: Mutex<bool>,
}

impl Handle for Array {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// Raises the generation of an array, so that resumed calls detect that it changed.
fn raise_generation(client: &Client, path: &str) -> Result<()> {
    let name = format!("{path}/{GENERATION}");
    let old = match client.read_small(&name) {
        Ok(text) => text,
        Err(error) if error.kind == ErrorKind::NotFound => b"0".to_vec(),
        Err(error) => return Err(error),
    };
    let number = std::str::from_utf8(&old).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let number = number.ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("{name} holds no number; write one larger than the last known one"),
        )
    })?;
    client.replace_small(&name, (number + 1).to_string().as_bytes())
}

impl Array {
    fn open(pool: &Pool, path: &str, metadata: Metadata, writable: bool, is_new: bool) -> Result<Self> {
        let Metadata { element, grid } = metadata;
        let memory = MemoryUse { arena: Arena::short_lived(4 * BOUNCE_BYTES), bounce_bytes: BOUNCE_BYTES };
        let volume: Arc<dyn Volume<Buffer = Region>> = pool.client.clone();
        let file = ArrayFile::open(volume, path, grid, writable, memory, None)?;
        Ok(Self {
            context: pool.context.clone(),
            client: pool.client.clone(),
            path: path.to_owned(),
            element,
            file: Arc::new(file),
            writable,
            counted: Mutex::new(is_new),
        })
    }

    fn grid(&self) -> &ChunkGrid {
        self.file.grid()
    }

    /// Starts moving a box between the array and memory in C order.
    ///
    /// # Safety
    /// `start` and `count` have one number for each dimension; the memory has `bytes` bytes until the request has ended.
    unsafe fn start(
        &self,
        operation: Operation,
        start: *const u64,
        count: *const u64,
        memory: *mut c_void,
        bytes: u64,
    ) -> Result<Ticket> {
        let dims = self.grid().dims();
        // SAFETY: as the caller promises.
        let (start, count) = unsafe {
            (
                numbers_of(start, dims, "first indices of the box")?,
                numbers_of(count, dims, "lengths of the box")?,
            )
        };
        let item = self.element.bytes();
        let need = count.iter().try_fold(item, |bytes, &count| bytes.checked_mul(count));
        if need != Some(bytes) {
            return Err(Error::invalid(format!(
                "need memory for a box of {count:?} elements of {item} bytes, have {bytes} bytes; pass as many bytes as the \
                 box has"
            )));
        }
        if operation == Operation::Write {
            self.count_writing()?;
        }
        let mut strides = vec![item as i64; dims];
        for dim in (1..dims).rev() {
            strides[dim - 1] = strides[dim] * count[dim] as i64;
        }
        let request = BoxRequest {
            start: start.to_vec(),
            count: count.to_vec(),
            step: vec![1; dims],
            memory_strides: strides.clone(),
        };
        // SAFETY: as the caller promises.
        let block = unsafe { block_of(memory.cast(), bytes)? };
        self.file.submit(operation, &request, Memory { block, origin: 0, strides })
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{} is open for reading only; open it with O_RDWR", self.path),
        ))
    }

    /// Raises the generation before the first write.
    fn count_writing(&self) -> Result<()> {
        self.check_writable()?;
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if !*counted {
            raise_generation(&self.client, &self.path)?;
            *counted = true;
        }
        Ok(())
    }

    /// Another process has raised the generation for this one, too.
    pub(crate) fn counted_elsewhere(&self) {
        *self.counted.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn document(&self) -> String {
        format!("{}/zarr.json", self.path)
    }

    /// Counts a write by all processes, and marks the array incomplete. Returns its metadata as they were before.
    pub(crate) fn mark(&self, state: &str, why: &str) -> Result<Vec<u8>> {
        self.count_writing()?;
        let before = self.client.read_small(&self.document())?;
        self.client.replace_small(&self.document(), &marked(&before, &self.path, Some((state, why)))?)?;
        Ok(before)
    }

    /// Ends a write by all processes. An array that was incomplete before becomes whole if `all` of it is new.
    pub(crate) fn publish(&self, before: &[u8], all: bool) -> Result<()> {
        let state = if all { None } else { state_of(before) };
        let state = state.as_ref().map(|(state, why)| (state.as_str(), why.as_str()));
        self.client.replace_small(&self.document(), &marked(before, &self.path, state)?)
    }
}

/// Makes the files of a new array, `zarr.json` last.
fn make(pool: &Pool, path: &str, metadata: &Metadata) -> Result<()> {
    if pool.client.exists(path)? {
        return Err(Error::new(ErrorKind::Exists, format!("{path} exists; choose another name")));
    }
    let volume: Arc<dyn Volume<Buffer = Region>> = pool.client.clone();
    let made = raise_generation(&pool.client, path)
        .and_then(|()| ArrayFile::create(&volume, path, &metadata.grid, true, Hints::default()))
        .and_then(|()| pool.client.replace_small(&format!("{path}/zarr.json"), &metadata.to_json()));
    made.inspect_err(|error| {
        // If it exists, another client makes it.
        if error.kind != ErrorKind::Exists {
            let _ = pool.client.remove(path);
        }
    })
}

/// Creates an array of zeros, and opens it for reading and writing. Python opens it by `oc.open_array`, and Zarr software
/// reads it.
///
/// `shape` has the elements along each of the `dims` dimensions, and `chunk` those of a chunk, the unit of transfers: at
/// most 64 MiB, best 1 to 16 MiB. `type` is the name of the elements' type, such as "float64", "complex64" or "int32".
/// `order` is 'C' or 'F': the order of the elements in a chunk, and of the chunks.
///
/// Errors: -EEXIST, -ENOSPC, -EINVAL (an unusable shape, type or order), -EACCES.
///
/// # Safety
/// `pool` is a pool, or NULL; the texts end with a zero byte; the arrays have `dims` numbers; `array` is NULL, or valid for
/// a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_create(
    pool: *const Pool,
    path: *const c_char,
    dims: usize,
    shape: *const u64,
    chunk: *const u64,
    r#type: *const c_char,
    order: c_char,
    array: *mut *mut Array,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        hand_out(array, || {
            let path = text_of(path, "path of an array")?;
            let element = ElementType::named(text_of(r#type, "type of the elements")?)?;
            let (storage, chunk_order) = match order as u8 {
                b'C' => (StorageOrder::C, "row-major"),
                b'F' => (StorageOrder::F, "column-major"),
                other => {
                    let have = char::from(other);
                    return Err(Error::invalid(format!(
                        "need the order 'C' or 'F', have {have:?}; choose one"
                    )));
                }
            };
            let grid = ChunkGrid::new(GridSpec {
                shape: numbers_of(shape, dims, "lengths of the array")?.to_vec(),
                chunk: numbers_of(chunk, dims, "lengths of a chunk")?.to_vec(),
                item_bytes: element.bytes(),
                storage,
                chunk_order: ChunkOrder::from_name(chunk_order, None)?,
                slot_align_bytes: pool.client.slot_align_bytes(),
                column_places: None,
                growing: false,
            })?;
            let metadata = Metadata { element, grid };
            make(pool, path, &metadata)?;
            Array::open(pool, path, metadata, true, true)
        })
    })
}

/// Opens an array for reading (`flags` O_RDONLY) or for reading and writing (O_RDWR).
///
/// Errors: -ENOENT, -EACCES, -EINVAL (no array of outcore, an array that a call left incomplete, or one that grows),
/// -EBADMSG, -ENODATA (damaged files).
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte; `array` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_open(
    pool: *const Pool,
    path: *const c_char,
    flags: c_int,
    array: *mut *mut Array,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        hand_out(array, || {
            let writable = match flags & !libc::O_CLOEXEC {
                libc::O_RDONLY => false,
                libc::O_RDWR => true,
                _ => {
                    return Err(Error::invalid(format!(
                        "need O_RDONLY or O_RDWR, have {flags:#o}; choose one"
                    )));
                }
            };
            let path = text_of(path, "path of an array")?;
            let text = pool.client.read_small(&format!("{path}/zarr.json"))?;
            Array::open(pool, path, Metadata::parse(&text, path)?, writable, false)
        })
    })
}

/// Returns the number of dimensions of an array.
///
/// # Safety
/// `array` is an array, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_dims(array: *const Array) -> i64 {
    // SAFETY: as the caller promises.
    count(unsafe { array.as_ref() }, |array| Ok(array.grid().dims() as u64))
}

/// Copies the elements along each dimension of an array to `shape`, and those of a chunk to `chunk`. NULL is ignored.
///
/// # Safety
/// `array` is an array, or NULL; `shape` and `chunk` are NULL, or have space for one number for each dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_shape(array: *const Array, shape: *mut u64, chunk: *mut u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { array.as_ref() }, |array| {
        let spec = array.grid().spec();
        for (from, to) in [(&spec.shape, shape), (&spec.chunk, chunk)] {
            if !to.is_null() {
                // SAFETY: as the caller promises.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            }
        }
        Ok(())
    })
}

/// Returns the name of the type of an array's elements, such as "float64"; NULL for NULL. It is valid until the end of the
/// program.
///
/// # Safety
/// `array` is an array, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_type(array: *const Array) -> *const c_char {
    // SAFETY: as the caller promises.
    unsafe { array.as_ref() }.map_or(std::ptr::null(), |array| array.element.name().as_ptr())
}

/// Reads a box of elements into `memory`, in C order. The box has `count` elements along each dimension, from index `start`
/// on; `bytes` is its size.
///
/// Errors: -EINVAL (a box outside the array, or another number of bytes), -EBADMSG (a wrong checksum), -EIO.
///
/// # Safety
/// `array` is an array, or NULL; `start` and `count` have one number for each dimension; `memory` has at least `bytes`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_read(
    array: *const Array,
    start: *const u64,
    count: *const u64,
    memory: *mut c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    call(unsafe { array.as_ref() }, |array| unsafe {
        array.start(Operation::Read, start, count, memory, bytes)?.finish()
    })
}

/// Writes a box of elements from `memory`, in C order; see `outcore_array_read`. It touches no other elements.
///
/// Errors: -EROFS (the array is open for reading), -EINVAL, -ENOSPC, -EREMOTEIO (earlier writes may be lost), -EIO.
///
/// # Safety
/// `array` is an array, or NULL; `start` and `count` have one number for each dimension; `memory` has at least `bytes`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_write(
    array: *const Array,
    start: *const u64,
    count: *const u64,
    memory: *const c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    call(unsafe { array.as_ref() }, |array| unsafe {
        array.start(Operation::Write, start, count, memory.cast_mut(), bytes)?.finish()
    })
}

/// Starts `outcore_array_read`. The memory belongs to the library until the request has ended.
///
/// # Safety
/// As for `outcore_array_read`, until the request has ended; `request` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_start_read(
    array: *const Array,
    start: *const u64,
    count: *const u64,
    memory: *mut c_void,
    bytes: u64,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { started(array, request, |array| array.start(Operation::Read, start, count, memory, bytes)) }
}

/// Starts `outcore_array_write`. The memory must not change until the request has ended.
///
/// # Safety
/// As for `outcore_array_write`, until the request has ended; `request` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_start_write(
    array: *const Array,
    start: *const u64,
    count: *const u64,
    memory: *const c_void,
    bytes: u64,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        started(array, request, |array| array.start(Operation::Write, start, count, memory.cast_mut(), bytes))
    }
}

/// Returns once all completed writes to the array survive a power loss.
///
/// Errors: -EREMOTEIO (earlier writes may be lost: write them again), -EIO, -ENOSPC.
///
/// # Safety
/// `array` is an array, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_sync(array: *const Array) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { array.as_ref() }, |array| array.file.submit_sync().finish())
}

/// Closes an array, and frees the handle. Requests in flight continue. It does not sync. NULL is ignored.
///
/// # Safety
/// `array` is NULL, or an array that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_close(array: *mut Array) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { release(array, |_| Ok(())) }
}
