//! Special functions.

use super::Binder;
use pellucid::ops;

pub(super) fn bind(table: &mut Binder) {
    table.unary("special.airy_ai", ops::airy_ai);
    table.unary("i0", ops::i0);
    table.unary("special.i0e", ops::i0e);
    table.unary("special.i1", ops::i1);
    table.unary("special.i1e", ops::i1e);
    table.unary("special.modified_bessel_i0", ops::i0);
    table.unary("special.modified_bessel_i1", ops::i1);
    table.unary("special.modified_bessel_k0", ops::k0);
    table.unary("special.modified_bessel_k1", ops::k1);
    table.unary("special.scaled_modified_bessel_k0", ops::k0e);
    table.unary("special.scaled_modified_bessel_k1", ops::k1e);
    table.unary("special.bessel_j0", ops::bessel_j0);
    table.unary("special.bessel_j1", ops::bessel_j1);
    table.unary("special.bessel_y0", ops::bessel_y0);
    table.unary("special.bessel_y1", ops::bessel_y1);
    table.unary("special.spherical_bessel_j0", ops::spherical_bessel_j0);
    table.unary("special.erfcx", ops::erfcx);
    table.unary("special.ndtr", ops::ndtr);
    table.unary("special.ndtri", ops::ndtri);
    table.unary("special.log_ndtr", ops::log_ndtr);
    table.unary("special.entr", ops::entr);
    table.unary("lgamma", ops::lgamma);
    table.binary("special.zeta", ops::zeta);
    table.binary("igamma", ops::igamma);
    table.binary("igammac", ops::igammac);
    table.binary("special.chebyshev_polynomial_t", ops::chebyshev_t);
    table.binary("special.chebyshev_polynomial_u", ops::chebyshev_u);
    table.binary("special.chebyshev_polynomial_v", ops::chebyshev_v);
    table.binary("special.chebyshev_polynomial_w", ops::chebyshev_w);
    table.binary("special.shifted_chebyshev_polynomial_t", ops::shifted_chebyshev_t);
    table.binary("special.shifted_chebyshev_polynomial_u", ops::shifted_chebyshev_u);
    table.binary("special.shifted_chebyshev_polynomial_v", ops::shifted_chebyshev_v);
    table.binary("special.shifted_chebyshev_polynomial_w", ops::shifted_chebyshev_w);
    table.binary("special.hermite_polynomial_h", ops::hermite_h);
    table.binary("special.hermite_polynomial_he", ops::hermite_he);
    table.binary("special.laguerre_polynomial_l", ops::laguerre_l);
    table.binary("special.legendre_polynomial_p", ops::legendre_p);
    for name in [
        "polygamma.polygamma_n_0",
        "polygamma.polygamma_n_1",
        "polygamma.polygamma_n_2",
        "polygamma.polygamma_n_3",
        "polygamma.polygamma_n_4",
        "special.polygamma.special_polygamma_n_0",
    ] {
        table.one(name, |c| ops::polygamma(c.x()?, c.count(1, "n")? as f64));
    }
    for name in ["mvlgamma.mvlgamma_p_1", "mvlgamma.mvlgamma_p_3", "mvlgamma.mvlgamma_p_5"] {
        table.one(name, |c| ops::multigammaln(c.x()?, c.count(1, "p")?));
    }
}
