//! Whether the machine code contains the instructions that its declaration promises.

use std::collections::BTreeSet;

/// Those of `declared` that no line of the disassembly `listing` executes.
///
/// `HMMA.16816.F32` is found in `HMMA.16816.F32.BF16`, but not in `HMMA.16816.F32X`; of `HMMA+LDSM|HGMMA` either both or
/// the last will do.
pub(crate) fn missing<'a>(declared: &'a [String], listing: &str) -> Vec<&'a str> {
    let present: BTreeSet<&str> = listing.lines().filter_map(opcode).collect();
    let found = |wanted: &str| {
        present.iter().any(|opcode| {
            opcode.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let of_any = |wanted: &str| wanted.split('|').any(|all| all.split('+').all(found));
    declared.iter().map(String::as_str).filter(|wanted| !of_any(wanted)).collect()
}

/// The opcode of a line such as `/*0b60*/  @!P0 HMMA.16816.F32.BF16 R4, R8, R2, R4 ;`.
fn opcode(line: &str) -> Option<&str> {
    let (address, code) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    if !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut words = code.split_whitespace().map(|word| word.trim_end_matches(';'));
    words.find(|word| !word.starts_with('@') && !word.is_empty() && *word != "{")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
\t.section\t.text.k,\"ax\",@progbits
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0b60*/              @!P0 HMMA.16816.F32.BF16 R4, R8, R2, R4 ;
        /*0b70*/                   IMAD.MOV.U32 R9, RZ, RZ, R8 ;
        /*0b80*/                   { LDSM.16.M88.4 R12, [R3] ; }
// HGMMA in a comment
        /*0b90*/                   EXIT ;";

    #[test]
    fn a_promised_instruction_that_is_not_there_is_named() {
        let declared = ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "EXIT", "HGMMA", "HMMA.16816.F3"];
        let declared = declared.map(str::to_owned);
        assert_eq!(missing(&declared, LISTING), ["HGMMA", "HMMA.16816.F3"]);
        assert_eq!(missing(&declared[..3], LISTING), Vec::<&str>::new());
        assert_eq!(missing(&declared[..1], ""), ["HMMA.16816.F32.BF16"]);
        let declared = ["HGMMA|HMMA.16816", "HGMMA|HMMA.1688"].map(str::to_owned);
        assert_eq!(missing(&declared, LISTING), ["HGMMA|HMMA.1688"]);
        let declared = ["HMMA+LDSM|HGMMA", "HMMA+UTMALDG|HGMMA+LDSM"].map(str::to_owned);
        assert_eq!(missing(&declared, LISTING), ["HMMA+UTMALDG|HGMMA+LDSM"]);
    }
}
