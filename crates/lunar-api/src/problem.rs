//! Errors of the API, in the form of RFC 9457.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lunar_admin::{ControlError, ControlErrorKind};
use lunar_config::{Diagnostic, ErrorCode, Position};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The media type of errors.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// An error of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The status of the response.
    pub status: u16,
    /// The class of the error in words.
    pub title: String,
    /// The fault: object, fault, value.
    pub detail: String,
    /// The fix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// The error code, for programs.
    #[serde(default)]
    pub code: String,
    /// All faults, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemDetail>,
}

/// One of several faults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemDetail {
    /// The fault.
    pub detail: String,
    /// The fix.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// The file of the fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The column in characters, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl Problem {
    /// An error with a fault and a hint.
    pub(crate) fn new(
        status: StatusCode,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) -> Box<Problem> {
        Box::new(Problem {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            detail: detail.into(),
            hint: hint.into(),
            code: ErrorCode::Other.name().to_owned(),
            errors: Vec::new(),
        })
    }

    /// The error of an object that does not exist.
    pub(crate) fn not_found(what: impl std::fmt::Display, hint: &str) -> Box<Problem> {
        let problem = Problem::new(StatusCode::NOT_FOUND, format!("{what} does not exist"), hint);
        Box::new(Problem { code: ErrorCode::NotFound.name().to_owned(), ..*problem })
    }

    /// The faults of a client, one or more.
    pub(crate) fn into_diagnostics(self) -> Vec<Diagnostic> {
        let code = ErrorCode::from_name(&self.code);
        if self.errors.is_empty() {
            return vec![Diagnostic::new(self.detail, self.hint).with_code(code)];
        }
        self.errors.into_iter().map(|one| one.into_diagnostic(code)).collect()
    }
}

impl ProblemDetail {
    fn into_diagnostic(self, code: ErrorCode) -> Diagnostic {
        let position = self.line.zip(self.column).map(|(line, column)| Position { line, column });
        let hint = Some(self.hint).filter(|hint| !hint.is_empty());
        let fault = Diagnostic::new(self.detail, "").with_code(code);
        Diagnostic { file: self.file.map(Into::into), position, hint, ..fault }
    }
}

impl From<&Diagnostic> for ProblemDetail {
    fn from(problem: &Diagnostic) -> ProblemDetail {
        ProblemDetail {
            detail: problem.what.clone(),
            hint: problem.hint.clone().unwrap_or_default(),
            file: problem.file.as_ref().map(|file| file.display().to_string()),
            line: problem.position.map(|position| position.line),
            column: problem.position.map(|position| position.column),
        }
    }
}

impl From<ControlError> for Box<Problem> {
    fn from(error: ControlError) -> Box<Problem> {
        let status = match error.kind {
            ControlErrorKind::NotFound => StatusCode::NOT_FOUND,
            ControlErrorKind::Conflict => StatusCode::CONFLICT,
            ControlErrorKind::Stale => StatusCode::PRECONDITION_FAILED,
            ControlErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ControlErrorKind::Forbidden => StatusCode::FORBIDDEN,
            ControlErrorKind::Failed => StatusCode::SERVICE_UNAVAILABLE,
        };
        let first = error.problems.first();
        let code = first.map_or(ErrorCode::Other, |problem| problem.code).name().to_owned();
        match &error.problems[..] {
            [one] => {
                let errors = one.file.iter().map(|_| one.into()).collect();
                let hint = one.hint.clone().unwrap_or_default();
                Box::new(Problem { code, errors, ..*Problem::new(status, one.fault(), hint) })
            }
            all => {
                let what = format!("the configuration has {} faults", all.len());
                let errors = all.iter().map(ProblemDetail::from).collect();
                Box::new(Problem {
                    code,
                    errors,
                    ..*Problem::new(status, what, "correct them, and repeat the request")
                })
            }
        }
    }
}

impl IntoResponse for Box<Problem> {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        let media_type = HeaderValue::from_static(MEDIA_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"lunar\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_of_a_file_keeps_its_place() {
        let (file, position) = (Some("/l.toml".into()), Some(Position { line: 3, column: 7 }));
        let fault = Diagnostic { file, position, ..Diagnostic::new("no disk", "bring one") };
        let problem: Box<Problem> = ControlError::one(ControlErrorKind::Invalid, fault.clone()).into();
        assert_eq!(problem.detail, "/l.toml:3:7: no disk");
        assert_eq!((*problem).into_diagnostics(), [fault]);
    }

    #[test]
    fn several_faults_arrive_one_by_one() {
        let (file, position) = (Some("/l.toml".into()), Some(Position { line: 3, column: 7 }));
        let placed = Diagnostic { file, position, ..Diagnostic::new("no disk", "bring one") };
        let bare = Diagnostic { hint: None, ..Diagnostic::new("no LUN", "") };
        let faults = vec![placed, bare].into_iter().map(|fault| fault.with_code(ErrorCode::NotFound));
        let faults: Vec<Diagnostic> = faults.collect();
        let error = ControlError { kind: ControlErrorKind::Invalid, problems: faults.clone() };
        let problem: Box<Problem> = error.into();
        assert_eq!(problem.detail, "the configuration has 2 faults");
        assert_eq!((*problem).into_diagnostics(), faults);
    }
}
