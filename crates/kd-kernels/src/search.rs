//! Where bundles are looked for.

use std::path::PathBuf;

use crate::KernelError;

/// Folders to search, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    places: Vec<PathBuf>,
}

impl Search {
    /// The folder or file that a flag names, and nothing else.
    pub fn only(place: impl Into<PathBuf>) -> Self {
        Self { places: vec![place.into()] }
    }

    /// `KD_KERNELS` if it is set; else beside the executable, its `kernels/` folder, and the `target/kernels` of a build
    /// that the executable or the working folder lies in.
    pub fn standard() -> Self {
        if let Some(place) = std::env::var_os("KD_KERNELS") {
            return Self::only(place);
        }
        let mut places = Vec::new();
        if let Some(folder) = std::env::current_exe().ok().and_then(|exe| exe.parent().map(PathBuf::from)) {
            places.extend([folder.clone(), folder.join("kernels")]);
            let targets = folder.ancestors().filter(|above| above.ends_with("target"));
            places.extend(targets.map(|target| target.join("kernels")));
        }
        places.push(PathBuf::from("target/kernels"));
        Self { places }
    }

    /// The bundle of `profile` for image architecture `arch`.
    ///
    /// # Errors
    /// [`KernelError::BundleMissing`], with the places and what to run.
    pub fn find(&self, profile: &str, arch: &str) -> Result<PathBuf, KernelError> {
        let file = format!("{profile}-{arch}.kdb");
        for place in &self.places {
            let candidate = if place.is_file() { place.clone() } else { place.join(&file) };
            if candidate.is_file() {
                return Ok(candidate);
            }
        }
        let searched =
            self.places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        let arch = arch.replace("compute_", "sm_");
        Err(KernelError::BundleMissing { file, searched, profile: profile.to_owned(), arch })
    }
}
