// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// A policy is compiled here once more than in the plugins: they report neither all errors nor costs.
type policy struct {
	Name   string    `json:"name"`
	Errors []problem `json:"errors"`

	compiler   *cel.CompositedCompiler
	conditions cel.ConditionEvaluator
	// One of the two, by the kind of the policy.
	mutations   []cel.MutatingEvaluator
	validations cel.ConditionEvaluator
}

type problem struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

var (
	inConditions  = cel.OptionalVariableDeclarations{HasAuthorizer: true}
	inMutations   = cel.OptionalVariableDeclarations{HasAuthorizer: true, HasPatchTypes: true}
	inMessages    = cel.OptionalVariableDeclarations{}
	inExpressions = inConditions
)

// newPolicy compiles what both kinds of policies have.
func newPolicy(name, since string, conditions []v1.MatchCondition, variables []v1.Variable) *policy {
	oldest := environment.DefaultCompatibilityVersion()
	if since != "" {
		oldest = version.MustParse(since)
	}
	base := environment.MustBaseEnvSet(oldest)
	made := &policy{Name: name, Errors: []problem{}}
	accessors := []cel.ExpressionAccessor{}
	for i := range conditions { // these see no variables
		accessor := (*matchconditions.MatchCondition)(&conditions[i])
		accessors = append(accessors, accessor)
		made.compile(cel.NewCompiler(base), "matchConditions "+conditions[i].Name, accessor, inConditions)
	}
	made.conditions = cel.NewConditionCompiler(base).CompileCondition(accessors, inConditions, environment.NewExpressions)
	compiler, err := cel.NewCompositedCompiler(base)
	must(err)
	made.compiler = compiler
	for _, one := range variables {
		variable := &validating.Variable{Name: one.Name, Expression: one.Expression}
		if err := compiler.CompileAndStoreVariable(variable, inExpressions, environment.NewExpressions).Error; err != nil {
			made.Errors = append(made.Errors, problem{"variables " + one.Name, err.Detail})
		}
	}
	return made
}

func (p *policy) compile(compiler cel.Compiler, field string, one cel.ExpressionAccessor, declared cel.OptionalVariableDeclarations) {
	if err := compiler.CompileCELExpression(one, declared, environment.NewExpressions).Error; err != nil {
		p.Errors = append(p.Errors, problem{field, err.Detail})
	}
}

func newMutating(given *v1.MutatingAdmissionPolicy, since string) *policy {
	made := newPolicy(given.Name, since, given.Spec.MatchConditions, given.Spec.Variables)
	for i, one := range given.Spec.Mutations {
		accessor := &patch.JSONPatchCondition{Expression: one.JSONPatch.Expression}
		made.compile(made.compiler, fmt.Sprintf("mutations[%d]", i), accessor, inMutations)
		made.mutations = append(made.mutations, made.compiler.CompileMutatingEvaluator(accessor, inMutations, environment.NewExpressions))
	}
	return made
}

func newValidating(given *v1.ValidatingAdmissionPolicy, since string) *policy {
	made := newPolicy(given.Name, since, given.Spec.MatchConditions, given.Spec.Variables)
	accessors := []cel.ExpressionAccessor{}
	for i, one := range given.Spec.Validations {
		accessor := &validating.ValidationCondition{Expression: one.Expression}
		accessors = append(accessors, accessor)
		made.compile(made.compiler, fmt.Sprintf("validations[%d]", i), accessor, inExpressions)
		if one.MessageExpression != "" {
			message := &validating.MessageExpressionCondition{MessageExpression: one.MessageExpression}
			made.compile(made.compiler, fmt.Sprintf("validations[%d] message", i), message, inMessages)
		}
	}
	made.validations = made.compiler.CompileCondition(accessors, inExpressions, environment.NewExpressions)
	return made
}

// costs returns what each part of the policy costs for a request, in the units of the API server.
func (p *policy) costs(given *admission.VersionedAttributes, namespace *corev1.Namespace) map[string]int64 {
	request := cel.CreateAdmissionRequest(given.Attributes, metav1.GroupVersionResource(given.GetResource()), metav1.GroupVersionKind(given.VersionedKind))
	const all, ofConditions = celconfig.RuntimeCELCostBudget, celconfig.RuntimeCELCostBudgetMatchConditions
	bindings := cel.OptionalVariableBindings{}
	matched, left, _ := p.conditions.ForInput(context.Background(), given, request, bindings, nil, ofConditions)
	found := map[string]int64{"matchConditions": ofConditions - left}
	for _, one := range matched {
		if one.Error != nil || !isTrue(one) {
			return found
		}
	}
	for i, one := range p.mutations {
		_, left, _ := one.ForInput(p.compiler.CreateContext(context.Background()), given, request, bindings, namespace, all)
		found[fmt.Sprintf("mutations[%d]", i)] = all - left
	}
	if p.validations != nil {
		_, left, _ := p.validations.ForInput(context.Background(), given, request, bindings, cel.CreateNamespaceObject(namespace), all)
		found["validations"] = all - left
	}
	return found
}

func isTrue(one cel.EvaluationResult) bool {
	value, ok := one.EvalResult.Value().(bool)
	return ok && value
}
